//! The `plimsoll` command as a process: what it prints, the signals it obeys, its exit codes, and what a kill leaves.

mod killed;
mod serve_command;
mod serve_process;
mod session_command;
