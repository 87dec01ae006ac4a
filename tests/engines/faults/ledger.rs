//! Records of each delivery of each message, and of each fault.
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::Mutex,
    time::{Duration, Instant},
};

use steadfast::queue::{Delivery, MessageId, QueueError};

/// How the handling of one delivery ended, as far as its worker knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    UnderWay,
    Settled,
    /// The receipt was stale: the message was delivered again, or had been settled.
    Stale,
    /// The settlement has no answer, or the backend was not there.
    Unknown(String),
}

#[derive(Debug, Clone)]
pub(super) struct Run {
    number: u64,
    deliveries: u32,
    life: u64,
    asked: Instant,
    ended: Instant,
    end: End,
}

/// A fault, from its begin until the clients had time to mend.
#[derive(Debug, Clone)]
struct Fault {
    what: String,
    from: Instant,
    until: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the number of the message.
    accepted: BTreeMap<u64, (MessageId, Option<String>)>,
    /// All deliveries, in the order in which they arrived.
    runs: Vec<Run>,
    handled: HashSet<u64>,
    /// Lives of workers that were dropped.
    killed: HashSet<u64>,
    faults: Vec<Fault>,
}

/// What a run has shown.
#[derive(Debug, Default)]
pub(super) struct Summary {
    accepted: usize,
    deliveries: usize,
    duplicates: usize,
    by_kills: usize,
    /// By the latest fault before the end of the earlier delivery.
    by_faults: BTreeMap<String, usize>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, deliveries, duplicates, by_kills, by_faults } = self;
        write!(
            f,
            "{accepted} accepted, none lost; {deliveries} deliveries, {duplicates} of them again: {by_kills} of dropped workers, \
             {by_faults:?} by faults of the server"
        )
    }
}

impl Ledger {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn accepted(&self, number: u64, id: MessageId, group: Option<String>) {
        let before = self.state().accepted.insert(number, (id, group));
        assert!(before.is_none(), "message {number} was sent twice");
    }

    /// Records the arrival of a delivery; returns its place.
    pub(super) fn begin(&self, life: u64, asked: Instant, delivery: &Delivery) -> usize {
        let number = std::str::from_utf8(&delivery.body).unwrap().parse().unwrap();
        let mut state = self.state();
        state.handled.insert(number);
        let run = Run { number, deliveries: delivery.deliveries, life, asked, ended: asked, end: End::UnderWay };
        state.runs.push(run);
        state.runs.len() - 1
    }

    pub(super) fn end(&self, run: usize, settled: Result<(), &QueueError>) {
        let run = &mut self.state().runs[run];
        run.ended = Instant::now();
        run.end = match settled {
            Ok(()) => End::Settled,
            Err(QueueError::LeaseLost) => End::Stale,
            Err(error) => End::Unknown(error.to_string()),
        };
    }

    pub(super) fn killed(&self, life: u64) {
        self.state().killed.insert(life);
    }

    pub(super) fn fault(&self, what: &str, from: Instant, mending: Duration) {
        self.state().faults.push(Fault { what: what.to_owned(), from, until: Instant::now() + mending });
    }

    /// Returns the number of different messages that were handled so far.
    pub(super) fn handled(&self) -> u64 {
        self.state().handled.len() as u64
    }

    /// Checks the promises of a queue at the end of a run, when it is empty.
    ///
    /// # Panics
    /// If a message was lost, one was delivered after its settlement, or a further delivery has no recorded reason.
    pub(super) fn check(&self, visibility: Duration) -> Summary {
        let state = self.state();
        let ids: HashSet<_> = state.accepted.values().map(|(id, _)| id).collect();
        assert_eq!(ids.len(), state.accepted.len(), "an id was given twice");
        let lost: Vec<_> = state.accepted.keys().filter(|number| !state.handled.contains(number)).collect();
        assert!(lost.is_empty(), "{lost:?}: {} were accepted and never handled", lost.len());
        let unknown: Vec<_> = state.handled.iter().filter(|number| !state.accepted.contains_key(number)).collect();
        assert!(unknown.is_empty(), "{unknown:?}: handled, and never accepted");

        let mut summary =
            Summary { accepted: state.accepted.len(), deliveries: state.runs.len(), ..Summary::default() };
        let mut by_number: HashMap<u64, Vec<&Run>> = HashMap::new();
        state.runs.iter().for_each(|run| by_number.entry(run.number).or_default().push(run));
        for runs in by_number.values_mut() {
            runs.sort_by_key(|run| run.deliveries);
            let last = runs.last().unwrap();
            let ended = match last.end {
                End::Settled | End::Unknown(_) => true,
                // The settlement was sent, and its worker dropped before the answer.
                End::UnderWay => state.killed.contains(&last.life),
                End::Stale => false,
            };
            assert!(ended, "{runs:#?}: the queue is empty, and nobody completed it");
            for (run, next) in runs.iter().zip(&runs[1..]) {
                assert!(run.deliveries < next.deliveries, "{runs:#?}: two deliveries have one number");
                assert!(run.end != End::Settled, "{runs:#?}: delivered after its settlement");
                summary.duplicates += 1;
                if run.end == End::UnderWay && state.killed.contains(&run.life) {
                    summary.by_kills += 1;
                } else if let Some(fault) = state.fault_of(run) {
                    *summary.by_faults.entry(fault.what.clone()).or_default() += 1;
                } else {
                    // A busy machine may take longer than the visibility time-out, too.
                    let is_slow = run.ended - run.asked > visibility;
                    assert!(is_slow, "{runs:#?}\n{:#?}: no fault explains delivery {}", state.faults, run.deliveries);
                    *summary.by_faults.entry("a slow machine".to_owned()).or_default() += 1;
                }
            }
        }
        state.check_groups();
        summary
    }
}

impl State {
    fn fault_of(&self, run: &Run) -> Option<&Fault> {
        self.faults.iter().rev().find(|fault| fault.from <= run.ended && run.asked <= fault.until)
    }

    /// Messages of a group were handled for the first time in the order of their acceptance.
    fn check_groups(&self) {
        let (mut last, mut seen) = (HashMap::new(), HashSet::new());
        for run in &self.runs {
            let Some((_, Some(group))) = self.accepted.get(&run.number) else { continue };
            if seen.insert(run.number) {
                let before = last.insert(group, run.number);
                assert!(before < Some(run.number), "group {group}: {} came after {before:?}", run.number);
            }
        }
    }
}
