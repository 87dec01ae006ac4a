//! Cases as values, and how one ended.
use std::{
    any::Any,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use super::{Fixture, fixture::runtime};
use crate::time::Clock;

/// One case of a suite: its name and its check.
///
/// The tables of the suites, such as [`store::cases`](super::store::cases), return them: for a
/// program that runs a suite without the test harness, and for tests of the suite itself.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use steadfast::{
///     store::{InMemoryStore, Store},
///     testing::conformance::{Fixture, store},
///     time::Clock,
/// };
///
/// for case in store::cases().into_iter().take(3) {
///     let ended = case.run(Duration::from_secs(60), async || {
///         let (clock, time) = Clock::manual();
///         let store: Arc<dyn Store> = Arc::new(InMemoryStore::builder().clock(&clock).build());
///         Fixture::new(store).on_manual_time(&time)
///     });
///     assert_eq!(ended, Ok(()), "{}", case.name());
/// }
/// ```
pub struct Case<P: ?Sized> {
    name: &'static str,
    check: Check<P>,
}

type Check<P> = for<'a> fn(&'a mut Fixture<P>) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// The reason for which a case did not pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// An assertion of the case failed, or the backend panicked.
    #[error("{message}")]
    Failed {
        /// The message of the panic.
        message: String,
    },
    /// The case did not end within its limit.
    #[error("the case did not end within {limit:?}: a call of the backend blocks its thread or never returns")]
    TimedOut {
        /// The limit in real time.
        limit: Duration,
    },
}

/// Time limit of each named test, in real time.
const LIMIT: Duration = Duration::from_secs(120);

impl<P: ?Sized + 'static> Case<P> {
    #[doc(hidden)]
    pub const fn new(name: &'static str, check: Check<P>) -> Self {
        Self { name, check }
    }

    /// Returns the name of the case, which is also that of its test.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the case over a new fixture, on a thread and a runtime of its own.
    ///
    /// After `limit` the case is given up: its thread is left behind, since a thread that blocks
    /// cannot be ended.
    ///
    /// # Errors
    /// If an assertion failed, or if the case did not end within `limit` of real time.
    pub fn run<M>(&self, limit: Duration, make: M) -> Result<(), CaseError>
    where
        M: AsyncFnOnce() -> Fixture<P> + Send + 'static,
    {
        self.run_stretched(1, limit, make)
    }

    /// Runs the case with durations of real time that are so many times as long.
    fn run_stretched<M>(&self, stretch: u32, limit: Duration, make: M) -> Result<(), CaseError>
    where
        M: AsyncFnOnce() -> Fixture<P> + Send + 'static,
    {
        let (end, ended) = mpsc::channel();
        let check = self.check;
        let run = move || {
            let runtime = runtime(stretch);
            let case = || {
                runtime.block_on(async {
                    let mut fixture = make().await;
                    check(&mut fixture).await;
                });
            };
            // Sent before the runtime is dropped, which waits for calls that block its threads. The receiver may have
            // given up.
            let _ = end.send(catch_unwind(AssertUnwindSafe(case)).map_err(|panic| message(&*panic)));
        };
        if let Err(error) = thread::Builder::new().name(self.name.to_owned()).spawn(run) {
            return Err(CaseError::Failed { message: format!("no thread for the case: {error}") });
        }
        match ended.recv_timeout(limit) {
            Ok(ended) => ended.map_err(|message| CaseError::Failed { message }),
            Err(_) => Err(CaseError::TimedOut { limit }),
        }
    }

    /// Runs the case as a test. A case on real time that fails while the machine stalls has shown
    /// nothing about the backend, since a message may be due by then: it is run again, three times
    /// in all, with longer durations. A case on manual time has no such excuse.
    ///
    /// # Panics
    /// If the case does not pass.
    #[doc(hidden)]
    #[expect(clippy::print_stderr, reason = "a test says what it saw")]
    pub fn test<M>(&self, make: M)
    where
        M: AsyncFnOnce() -> Fixture<P> + Clone + Send + 'static,
    {
        let on_real_time = Arc::new(AtomicBool::new(false));
        for stretch in [1, 4, 10] {
            let (make, is_real) = (make.clone(), on_real_time.clone());
            let make = async move || {
                let fixture = make().await;
                is_real.store(!fixture.is_on_manual_time(), Ordering::Relaxed);
                fixture
            };
            let stalls = Stalls::watch();
            let Err(error) = self.run_stretched(stretch, LIMIT, make) else { return };
            let longest = stalls.longest();
            let may_be_late = on_real_time.load(Ordering::Relaxed) && longest >= STALL;
            assert!(may_be_late && stretch < 10, "`{}`: {error}", self.name);
            eprintln!("`{}`: {error}; it is run again, since the machine stalled for {longest:?}", self.name);
        }
    }
}

/// Time for which no thread may run before a machine is taken to stall: much less than the margin
/// of any case on real time, since a request waits for several threads and processes.
const STALL: Duration = Duration::from_millis(10);

/// Measures by a thread of its own how late a machine runs threads.
struct Stalls {
    stop: mpsc::Sender<()>,
    longest: thread::JoinHandle<Duration>,
}

impl Stalls {
    fn watch() -> Self {
        let (stop, stopped) = mpsc::channel();
        let clock = Clock::tokio();
        let measure = move || {
            let (wait, mut longest) = (Duration::from_millis(10), Duration::ZERO);
            loop {
                let began = clock.now();
                if stopped.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return longest;
                }
                longest = longest.max((clock.now() - began).saturating_sub(wait));
            }
        };
        Self { stop, longest: thread::spawn(measure) }
    }

    /// Ends the measurement, and returns the longest delay.
    fn longest(self) -> Duration {
        drop(self.stop);
        self.longest.join().unwrap_or_default()
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the case panicked").to_owned()
}

impl<P: ?Sized> Clone for Case<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: ?Sized> Copy for Case<P> {}

impl<P: ?Sized> fmt::Debug for Case<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// Defines a suite from the list of its cases: the macro that makes a named test of each, and the
/// table of all.
macro_rules! suite {
    (
        $d:tt
        $(#[$macro_doc:meta])* $tests:ident;
        $(#[$table_doc:meta])* $module:ident::$table:ident -> $port:ty;
        $($case:ident),+ $(,)?
    ) => {
        $(#[$macro_doc])*
        #[macro_export]
        macro_rules! $tests {
            ($d make:expr) => { $crate::conformance_cases!($module, $d make; $($case),+); };
        }

        $(#[$table_doc])*
        pub fn $table() -> Vec<$crate::testing::conformance::Case<$port>> {
            vec![$($crate::testing::conformance::Case::new(stringify!($case), |fixture| Box::pin($case(fixture)))),+]
        }
    };
}
pub(super) use suite;
