"""The Agent Host protocol 2026-07-01: one envelope in, one envelope out, whatever carries them."""
