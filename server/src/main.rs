//! The `plimsoll` command.
fn main() {}
