//! The process that ends at one of its requests.
use std::{
    fmt,
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Poll, Waker},
};

use super::super::link::{Behind, Link, Request, unavailable};
use crate::{
    lease::Lease,
    notify::Notifier,
    port::{BoxFuture, PortError},
    queue::Queue,
    store::Store,
    sync::{Mutex, MutexGuard},
};

/// Maximum number of requests of one run. The harness repeats the scenario for each of them, so the
/// time grows with the square.
const MAX_REQUESTS: usize = 1_000;

/// A process that ends at one of its requests, or gets an error from it. Clones are the same
/// process.
///
/// A scenario reaches its backends through the ports of this process. The recovery and the check
/// use the backends themselves.
#[derive(Clone)]
pub struct CrashingProcess(Arc<ProcessCore>);

struct ProcessCore {
    point: Option<Point>,
    state: Mutex<ProcessState>,
}

#[derive(Default)]
struct ProcessState {
    course: Course,
    /// Number of calls of `run` that are in progress.
    runs: usize,
    life: Life,
    waker: Option<Waker>,
}

/// The course of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Course {
    pub(super) requests: Vec<Request>,
    /// The process came to its point.
    pub(super) was_reached: bool,
    /// Requests were made in the poll of the crash and after it.
    pub(super) has_neighbours: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Life {
    #[default]
    Alive,
    /// The process ends at the end of this poll.
    Dying,
    Dead,
}

/// The effect on a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Crash,
    Failure,
}

/// The point relative to its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Before,
    After,
    Beside,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) effect: Effect,
    pub(super) place: Place,
    /// Number of the request, counted from 1.
    pub(super) number: usize,
}

/// The fate of a request.
enum Fate {
    Passes,
    /// It is lost, with an error.
    Fails,
    /// It is lost, without a reply.
    Hangs,
    /// It is applied, and its reply is lost.
    Unanswered(Effect),
}

impl CrashingProcess {
    /// Runs the scenario until it ends, and returns its output. Returns `None` if the process
    /// crashed: then the scenario was dropped.
    ///
    /// From the crash on, no request of this process is applied, also none of tasks that the
    /// scenario spawned. In this process a later `run` returns `None` at once.
    ///
    /// # Cancel safety
    /// Dropping the future drops the scenario.
    pub async fn run<F: Future>(&self, scenario: F) -> Option<F::Output> {
        let _running = self.0.start();
        let mut scenario = pin!(scenario);
        poll_fn(|cx| {
            // By an earlier run, or by a task that the scenario spawned.
            if self.has_crashed() {
                return Poll::Ready(None);
            }
            let polled = scenario.as_mut().poll(cx);
            // An output of the poll in which the process crashed was never there.
            if self.0.ends_poll(cx.waker()) { Poll::Ready(None) } else { polled.map(Some) }
        })
        .await
    }

    /// Returns `true` if the process has crashed.
    pub fn has_crashed(&self) -> bool {
        self.0.state().life == Life::Dead
    }

    /// Returns the store as this process reaches it.
    pub fn store(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Behind { link: self.clone(), port: store })
    }

    /// Returns the queue as this process reaches it.
    pub fn queue(&self, queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Arc::new(Behind { link: self.clone(), port: queue })
    }

    /// Returns the leases as this process reaches them.
    pub fn lease(&self, lease: Arc<dyn Lease>) -> Arc<dyn Lease> {
        Arc::new(Behind { link: self.clone(), port: lease })
    }

    /// Returns the notifier as this process reaches it. Notices to a subscriber are no requests.
    pub fn notifier(&self, notifier: Arc<dyn Notifier>) -> Arc<dyn Notifier> {
        Arc::new(Behind { link: self.clone(), port: notifier })
    }

    pub(super) fn new(point: Option<Point>) -> Self {
        Self(Arc::new(ProcessCore { point, state: Mutex::default() }))
    }

    pub(super) fn course(&self) -> Course {
        self.0.state().course.clone()
    }
}

impl ProcessCore {
    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock()
    }

    /// Begins a run, which ends on drop.
    fn start(&self) -> impl Drop {
        struct Running<'a>(&'a ProcessCore);

        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.state().runs -= 1;
            }
        }
        self.state().runs += 1;
        Running(self)
    }

    /// Ends a process that is dying; returns `true` if the process is dead.
    fn ends_poll(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        match state.life {
            Life::Alive => state.waker = Some(waker.clone()),
            Life::Dying | Life::Dead => state.life = Life::Dead,
        }
        state.life == Life::Dead
    }

    /// Numbers a request, and decides on it.
    fn begin(&self, request: Request) -> Fate {
        let mut state = self.state();
        if state.runs == 0 {
            drop(state);
            panic!(
                "{request} was made outside of `CrashingProcess::run`: a recovery and a check use the backend itself"
            );
        }
        if state.life == Life::Dead {
            state.course.has_neighbours = true;
            return Fate::Hangs;
        }
        if state.course.requests.len() == MAX_REQUESTS {
            drop(state);
            panic!("the process made more than {MAX_REQUESTS} requests, then {request}: let the scenario end");
        }
        state.course.requests.push(request);
        let number = state.course.requests.len();
        let Some(Point { effect, place, .. }) = self.point.filter(|point| point.number == number) else {
            return Fate::Passes;
        };
        state.course.was_reached = true;
        match (place, effect) {
            (Place::After, effect) => Fate::Unanswered(effect),
            (_, Effect::Failure) => Fate::Fails,
            (Place::Beside, Effect::Crash) => {
                state.die(Life::Dying);
                Fate::Hangs
            }
            (Place::Before, Effect::Crash) => {
                state.die(Life::Dead);
                Fate::Hangs
            }
        }
    }
}

impl ProcessState {
    /// Wakes the run, which drops the scenario.
    fn die(&mut self, life: Life) {
        self.life = life;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Link for CrashingProcess {
    type Name = Request;

    fn name(&self, request: impl FnOnce() -> Request) -> Request {
        request()
    }

    async fn pass<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        request: Request,
        mut apply: impl FnMut() -> BoxFuture<'static, Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let fate = self.0.begin(request);
        match fate {
            Fate::Hangs => return pending().await,
            Fate::Fails => return Err(unavailable("the request was lost").into()),
            Fate::Passes | Fate::Unanswered(_) => {}
        }
        let result = apply().await;
        match fate {
            Fate::Unanswered(Effect::Failure) => Err(unavailable("the reply was lost").outcome_unknown().into()),
            Fate::Unanswered(Effect::Crash) => {
                self.0.state().die(Life::Dead);
                pending().await
            }
            _ if self.has_crashed() => pending().await,
            _ => result,
        }
    }
}

impl Place {
    pub(super) const ALL: [Self; 3] = [Self::Before, Self::After, Self::Beside];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Beside => "beside",
        }
    }
}

/// The point, with its request once it was reached.
impl fmt::Display for CrashingProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Point { effect, place, number }) = self.0.point else { return f.write_str("no crash") };
        let effect = match effect {
            Effect::Crash => "crash",
            Effect::Failure => "failure",
        };
        write!(f, "{effect} {} request {number}", place.as_str())?;
        match self.0.state().course.requests.get(number - 1) {
            Some(request) => write!(f, ", {request}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for CrashingProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("CrashingProcess");
        shown
            .field("point", &self.0.point)
            .field("requests", &self.0.state().course.requests.len())
            .finish_non_exhaustive()
    }
}
