//! Calls that meet share a request.
//!
//! While a request of a handle is under way, calls gather. A task sends them together once the
//! tasks that are ready have run, so that those that were answered together ask together again. It
//! waits for an answer only while as many requests are under way as keep the server busy. A lone
//! call is sent at once, in its caller's future. Nothing depends on a caller's future being polled.
//!
//! [`Gather`](crate::gather::Gather) does not fit: calls of different scripts wait together and
//! leave as one request for each script, and those that waited too long are answered unsent.
use tokio::sync::oneshot;

use super::script::Call;
use crate::{port::PortError, sync::Mutex, time::Instant};

/// Number of requests under way from which calls wait for the end of one. With fewer, a distant or
/// busy server would be idle; with more, fewer calls would share a request.
const UNDER_WAY: usize = 3;
/// Maximum number of calls that wait; further ones fail as throttled.
const MAX_WAITING: usize = 16_384;

/// The calls of a handle that gather.
#[derive(Default)]
pub(super) struct Sharing(Mutex<State>);

#[derive(Default)]
struct State {
    /// Number of requests under way.
    under_way: usize,
    /// `true` if a task will take those that wait.
    is_scheduled: bool,
    waiting: Vec<(Call, Waiting)>,
}

/// The caller of a call.
pub(super) struct Waiting {
    pub(super) since: Instant,
    pub(super) answer: oneshot::Sender<Result<redis::Value, PortError>>,
}

/// Routing of a call.
pub(super) enum Way {
    /// The caller sends it, as a request that is under way from now on.
    Alone(Call),
    /// A task sends it; the caller spawns that task if `spawns`.
    Shared { answered: oneshot::Receiver<Result<redis::Value, PortError>>, spawns: bool },
    /// Too many calls wait.
    Refused,
}

impl State {
    /// Returns `true` if a task is to be spawned.
    fn schedule(&mut self) -> bool {
        let spawns = !self.waiting.is_empty() && !self.is_scheduled && self.under_way < UNDER_WAY;
        self.is_scheduled |= spawns;
        spawns
    }
}

impl Sharing {
    /// Begins a call.
    pub(super) fn begin(&self, call: Call, now: Instant) -> Way {
        let mut state = self.0.lock();
        if state.under_way == 0 && state.waiting.is_empty() {
            state.under_way = 1;
            return Way::Alone(call);
        }
        if state.waiting.len() >= MAX_WAITING {
            return Way::Refused;
        }
        let (answer, answered) = oneshot::channel();
        state.waiting.push((call, Waiting { since: now, answer }));
        Way::Shared { answered, spawns: state.schedule() }
    }

    /// Begins a request of those that gathered.
    pub(super) fn begin_shared(&self) {
        self.0.lock().under_way += 1;
    }

    /// Ends a request. Returns `true` if a task is to be spawned.
    pub(super) fn end(&self) -> bool {
        let mut state = self.0.lock();
        state.under_way -= 1;
        state.schedule()
    }

    /// Takes those that gathered, but for those whose callers are gone.
    pub(super) fn take(&self) -> Vec<(Call, Waiting)> {
        let mut state = self.0.lock();
        state.is_scheduled = false;
        let mut waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.retain(|(_, waiting)| !waiting.answer.is_closed());
        waiting
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::{super::script::Script, *};
    use crate::time::Clock;

    static SCRIPT: Script = Script::fields();

    fn begin(sharing: &Sharing) -> Way {
        sharing.begin(Call::new(&SCRIPT, "k".to_owned()), Clock::default().now())
    }

    fn spawns(way: &Way) -> Option<bool> {
        match way {
            Way::Alone(_) | Way::Refused => None,
            Way::Shared { spawns, .. } => Some(*spawns),
        }
    }

    #[test]
    fn a_lone_call_goes_alone_and_those_that_meet_gather_for_one_task() {
        let sharing = Sharing::default();
        let ways = [begin(&sharing), begin(&sharing), begin(&sharing)];
        assert_eq!(ways.each_ref().map(spawns), [None, Some(true), Some(false)]);
        assert_eq!(sharing.take().len(), 2);
        sharing.begin_shared();
        assert!(!sharing.end() && !sharing.end());
        assert_eq!(spawns(&begin(&sharing)), None);
    }

    #[test]
    fn calls_wait_for_an_end_while_enough_requests_are_under_way() {
        let sharing = Sharing::default();
        let _lone = begin(&sharing);
        (1..UNDER_WAY).for_each(|_| sharing.begin_shared());
        let waits = begin(&sharing);
        assert_eq!(spawns(&waits), Some(false));
        assert!(sharing.end(), "the end of a request spawns the task");
        assert!(!sharing.end(), "it was spawned");
        assert_eq!(sharing.take().len(), 1);
    }

    #[test]
    fn no_more_calls_wait_than_the_maximum() {
        let sharing = Sharing::default();
        let _lone = begin(&sharing);
        let waiting: Vec<Way> = (0..MAX_WAITING).map(|_| begin(&sharing)).collect();
        assert!(waiting.iter().all(|way| matches!(way, Way::Shared { .. })));
        assert!(matches!(begin(&sharing), Way::Refused));
        assert_eq!(sharing.take().len(), MAX_WAITING);
        assert!(matches!(begin(&sharing), Way::Shared { .. }));
    }

    #[test]
    fn a_call_whose_caller_is_gone_is_not_made() {
        let sharing = Sharing::default();
        let (_lone, gone, stays) = (begin(&sharing), begin(&sharing), begin(&sharing));
        drop(gone);
        assert_eq!(sharing.take().len(), 1);
        drop(stays);
    }
}
