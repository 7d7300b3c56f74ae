"""A whole deployment on virtual time: nodes, store, network and clients, and everything a function of one number."""
