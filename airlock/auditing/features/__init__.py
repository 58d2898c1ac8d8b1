"""Attacks on features that leave: rebuild records, find members, read off attributes, name the front end."""
