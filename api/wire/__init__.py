"""The routes of the AgenticDriver protocol, a file per noun."""
