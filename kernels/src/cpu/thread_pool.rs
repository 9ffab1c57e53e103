//! A small pool of fixed threads for work of microseconds: spin for a moment, then sleep.
//!
//! One step of a model is some hundreds of parallel loops with little between them, so a worker that has just worked
//! spins for [`SPIN`] before it sleeps; between steps and when the server is idle it costs nothing. The caller works
//! too, items are claimed one by one, and a worker that wakes too late finds the gate closed and changes nothing: the
//! caller never waits for a thread that has not begun. It decides nothing about results; items must not depend on who
//! runs them.
//!
//! The gate is the idea: one word with the number of the loop, whether it is open, and how many workers are inside.

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker looks for the next loop before it sleeps. Longer than the serial parts between two ops, shorter
/// than anything a person or a co-resident server thread would notice.
const SPIN: Duration = Duration::from_micros(60);

/// Spins between two looks at the clock, and before the first offer of the core to another thread.
const SPINS_PER_LOOK: u32 = 64;

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const LOOP: u64 = 1 << 32;

/// The closure of the open loop with its type erased.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    // Calls the closure behind `data` with a thread and an item.
    call: unsafe fn(*const (), usize, usize),
    items: usize,
}

struct Gate {
    /// Loop number, [`OPEN`], workers inside.
    word: AtomicU64,
    /// The next item to claim.
    next: AtomicUsize,
    /// Written only while the gate is closed and nobody is inside.
    job: std::cell::UnsafeCell<Job>,
    /// The payload of the first panic of the open loop.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Workers that sleep or are about to; they look at `word` again with `sleep` held before they do.
    sleepers: AtomicUsize,
    sleep: Mutex<Sleep>,
    wake: Condvar,
}

#[derive(PartialEq)]
enum Sleep {
    UntilWork,
    Never,
}

// SAFETY: `job` is written by the one caller that holds the pool's lock while the gate is closed and empty, and read
// only by threads that are inside.
unsafe impl Sync for Gate {}
// SAFETY: as above; the pointers in `job` are only followed while the caller that owns their target waits.
unsafe impl Send for Gate {}

/// See the module's text.
pub(crate) struct ThreadPool {
    gate: Arc<Gate>,
    workers: Vec<JoinHandle<()>>,
    /// One loop at a time.
    running: Mutex<()>,
}

impl ThreadPool {
    /// A pool of `threads` threads, the caller of [`ThreadPool::run`] being one of them.
    pub fn new(threads: NonZeroUsize) -> std::io::Result<Self> {
        let gate = Arc::new(Gate {
            word: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: std::cell::UnsafeCell::new(Job { data: std::ptr::null(), call: |_, _, _| (), items: 0 }),
            panic: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(Sleep::UntilWork),
            wake: Condvar::new(),
        });
        let mut pool = Self { gate, workers: Vec::new(), running: Mutex::new(()) };
        for worker in 1..threads.get() {
            let gate = Arc::clone(&pool.gate);
            let name = format!("plimsoll-cpu-{worker}");
            // On an error the pool is dropped, which joins the workers made so far.
            pool.workers.push(std::thread::Builder::new().name(name).spawn(move || gate.work(worker))?);
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f` once for each item `0..items`, on any thread in any order, and returns when all are done.
    ///
    /// A panic in `f` ends the loop early and goes on in the caller. `f` must not call `run` of the same pool.
    pub fn run<F: Fn(usize) + Sync>(&self, items: usize, f: F) {
        self.run_on_threads(items, |_, item| f(item));
    }

    /// As [`ThreadPool::run`], calling `f(thread, item)` with `thread < self.threads()`, so that each thread may have
    /// scratch memory of its own. Which thread runs an item is chance.
    pub fn run_on_threads<F: Fn(usize, usize) + Sync>(&self, items: usize, f: F) {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if self.workers.is_empty() || items <= 1 {
            (0..items).for_each(|item| f(0, item));
            return;
        }
        let gate = &*self.gate;

        /// # Safety
        /// `data` is a valid `&F`.
        unsafe fn call<F: Fn(usize, usize)>(data: *const (), thread: usize, item: usize) {
            // SAFETY: by the contract.
            unsafe { (*data.cast::<F>())(thread, item) }
        }
        let job = Job { data: (&raw const f).cast(), call: call::<F>, items };
        // SAFETY: the gate is closed, nobody is inside, and `running` keeps other callers out.
        unsafe { *gate.job.get() = job };
        gate.next.store(0, Ordering::Relaxed);
        // Loop numbers wrap after 2^32 loops; a worker only compares with the last one it served.
        let word = gate.word.load(Ordering::Relaxed);
        gate.word.store((word & !(LOOP - 1)).wrapping_add(LOOP) | OPEN, Ordering::SeqCst);
        if gate.sleepers.load(Ordering::SeqCst) > 0 {
            drop(gate.sleep.lock().unwrap_or_else(PoisonError::into_inner));
            gate.wake.notify_all();
        }

        gate.claim_items(job, 0);

        gate.word.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while gate.word.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            // A worker inside may have lost its core to another thread of the process.
            if spins.is_multiple_of(SPINS_PER_LOOK * 8) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let panic = gate.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Gate {
    /// Claims and runs items until none is left. Only called by threads that may read the job.
    fn claim_items(&self, job: Job, thread: usize) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let item = self.next.fetch_add(1, Ordering::Relaxed);
                if item >= job.items {
                    return;
                }
                // SAFETY: the caller of `run` keeps the closure alive until everyone has left the gate.
                unsafe { (job.call)(job.data, thread, item) };
            }
        }));
        if let Err(payload) = outcome {
            self.next.store(usize::MAX / 2, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    /// A worker's life.
    fn work(&self, thread: usize) {
        let mut served = 0;
        loop {
            let Some(word) = self.wait_for_loop(served) else { return };
            if self.word.compare_exchange(word, word + 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            served = word / LOOP;
            // SAFETY: this thread is inside, so the job stays as it is.
            let job = unsafe { *self.job.get() };
            self.claim_items(job, thread);
            self.word.fetch_sub(1, Ordering::Release);
        }
    }

    /// The gate's word when it stands open for a loop other than `served`; `None` when the pool goes down.
    fn wait_for_loop(&self, served: u64) -> Option<u64> {
        let open = || {
            let word = self.word.load(Ordering::SeqCst);
            (word & OPEN != 0 && word / LOOP != served).then_some(word)
        };
        let begin = Instant::now();
        loop {
            for _ in 0..SPINS_PER_LOOK {
                if let Some(word) = open() {
                    return Some(word);
                }
                std::hint::spin_loop();
            }
            if begin.elapsed() > SPIN {
                break;
            }
        }
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Between the count and the look the caller cannot slip by: it opens the gate before it reads the count.
        let found = loop {
            if *sleep == Sleep::Never {
                break None;
            }
            if let Some(word) = open() {
                break Some(word);
            }
            sleep = self.wake.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        *self.gate.sleep.lock().unwrap_or_else(PoisonError::into_inner) = Sleep::Never;
        self.gate.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its items; it has none of its own to report.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn pool(threads: usize) -> ThreadPool {
        ThreadPool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn every_item_runs_exactly_once_in_every_loop() {
        for threads in 1..=4 {
            let pool = pool(threads);
            assert_eq!(pool.threads(), threads);
            for items in (0..300).chain([5000]) {
                let counts: Vec<AtomicU32> = (0..items).map(|_| AtomicU32::new(0)).collect();
                pool.run(items, |i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{items} items, {threads} threads");
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = pool(3);
        for bad in [0, 7, 99] {
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(100, |i| assert!(i != bad, "item {i} is bad"))));
            let payload = outcome.unwrap_err();
            assert_eq!(*payload.downcast_ref::<String>().unwrap(), format!("item {bad} is bad"));
            let sum = AtomicUsize::new(0);
            pool.run(100, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 4950);
        }
    }

    #[test]
    fn workers_that_slept_take_part_again() {
        let pool = pool(2);
        for _ in 0..3 {
            std::thread::sleep(SPIN * 20);
            let both = std::sync::Barrier::new(2);
            // Two items that wait for each other need two threads.
            pool.run(2, |_| {
                both.wait();
            });
        }
    }

    #[test]
    fn several_callers_take_turns() {
        let pool = pool(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let sum = AtomicUsize::new(0);
                        pool.run(10, |i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 45);
                    }
                });
            }
        });
    }

    /// CPU time of the calling thread, seconds.
    #[cfg(target_os = "linux")]
    fn thread_seconds() -> f64 {
        // SAFETY: the call fills the struct it is given.
        let usage = unsafe {
            let mut usage = std::mem::zeroed::<libc::timespec>();
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut usage);
            usage
        };
        usage.tv_sec as f64 + usage.tv_nsec as f64 * 1e-9
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_idle_pool_sleeps() {
        // Other tests share the process, so each worker's own clock is read from inside the pool.
        let pool = pool(2);
        let (begin, end) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let read = |times: &Mutex<Vec<f64>>| {
            let both = std::sync::Barrier::new(2);
            pool.run(2, |_| {
                times.lock().unwrap().push(thread_seconds());
                both.wait();
            });
        };
        read(&begin);
        std::thread::sleep(Duration::from_millis(300));
        read(&end);
        let spent = end.lock().unwrap().iter().sum::<f64>() - begin.lock().unwrap().iter().sum::<f64>();
        assert!(spent < 0.05, "{spent} s of CPU time while idle for 0.3 s");
    }
}
