"""The protocol's vectors as tests: of this client against a scripted peer, and of any host that is named.

python -m runstream_client.conformance --host http://127.0.0.1:7433 --token TOKEN
"""
