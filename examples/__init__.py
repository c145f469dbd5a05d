"""Small programs that show the library at work; each runs in seconds to minutes."""
