//! Benchmarks of Plimsoll: kernels, agent sessions under compaction, side by side with other servers.
