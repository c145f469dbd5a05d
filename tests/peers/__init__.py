"""The tests of other packages, run against sparsum through adapters."""
