//! Scripted replies behind the executor contract.
