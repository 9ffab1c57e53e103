//! Stop strings in streamed text.
