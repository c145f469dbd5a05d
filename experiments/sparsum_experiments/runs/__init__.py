"""Runs on disk: their folders and records, each format with its reader and writer."""
