//! Shared by the tests of the election: nodes on one manual clock, each with its own connection to
//! the leases, which can be made to fail.
use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use steadfast::{
    Builder,
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    entropy::Entropy,
    leader_election::{LeaderElection, LeaderElectionConfig, LeaderElectionEvent},
    lease::{InMemoryLease, Lease, StoreLease},
    observe::Subscription,
    port::PortErrorKind,
    store::InMemoryStore,
    testing::{PortAnswer, ScriptedPort},
    time::{Clock, Instant, ManualClock},
};

pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;
pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;

/// Times of a term of 15 s under the default settings, with 15 ms for the drift of clocks.
pub(crate) const TERM: Duration = Duration::from_secs(15);
pub(crate) const DEADLINE: Duration = Duration::from_millis(13_985);
pub(crate) const WARNING: Duration = Duration::from_millis(12_985);
pub(crate) const POLL: Duration = Duration::from_secs(2);

/// The connection is cut: calls fail at once, not applied.
pub(crate) const REFUSED: PortAnswer = PortAnswer::fail(PortErrorKind::Unavailable);

/// Sets the latency of requests and replies.
pub(crate) fn takes(line: &ScriptedPort, request: Duration, reply: Duration) {
    line.always("", PortAnswer::pass().request_takes(request).answer_takes(reply));
}

/// One candidate with its connection.
pub(crate) struct Node {
    pub(crate) election: LeaderElection,
    pub(crate) line: ScriptedPort,
    /// The leases behind the connection.
    pub(crate) leases: Arc<dyn Lease>,
}

impl std::ops::Deref for Node {
    type Target = LeaderElection;
    fn deref(&self) -> &LeaderElection {
        &self.election
    }
}

/// Creates a node's instance of the leases; the node reads this clock.
type Instances = Box<dyn Fn(&Clock) -> Arc<dyn Lease>>;

/// Leases of one backend, and a clock.
pub(crate) struct World {
    pub(crate) time: ManualClock,
    pub(crate) clock: Clock,
    /// The store of the leases, if they are kept in one.
    pub(crate) store: Option<InMemoryStore>,
    instance: Instances,
    made: Cell<u64>,
}

impl World {
    pub(crate) fn in_memory() -> Self {
        let (clock, time) = Clock::manual();
        let leases = InMemoryLease::builder().clock(&clock).build();
        let instance = Box::new(move |_: &Clock| Arc::new(leases.clone()) as Arc<dyn Lease>);
        Self { time, clock, store: None, instance, made: Cell::new(0) }
    }

    /// Each node has an instance of its own over one store.
    pub(crate) fn over_store() -> Self {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        let kept = Some(store.clone());
        let instance = Box::new(move |clock: &Clock| {
            Arc::new(StoreLease::builder(Arc::new(store.clone())).clock(clock).build().unwrap()) as Arc<dyn Lease>
        });
        Self { time, clock, store: kept, instance, made: Cell::new(0) }
    }

    /// Over a SQLite file. Writes are done in place, so the test waits for no other thread.
    pub(crate) fn over_sqlite() -> Self {
        let (clock, time) = Clock::manual();
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::at(folder.path().join("leases.db")).durability(Durability::Relaxed);
        let sqlite = Sqlite::open_with_clock(config, &clock).unwrap();
        let instance = Box::new(move |clock: &Clock| {
            let _kept = &folder;
            Arc::new(StoreLease::builder(Arc::new(sqlite.store())).clock(clock).build().unwrap()) as Arc<dyn Lease>
        });
        Self { time, clock, store: None, instance, made: Cell::new(0) }
    }

    /// Runs the same test over every backend that offers leases.
    // Guarantee: leader_election 15.
    pub(crate) fn each(test: impl Fn(&Self)) {
        test(&Self::in_memory());
        test(&Self::over_store());
        test(&Self::over_sqlite());
    }

    pub(crate) fn node(&self, id: &str) -> Node {
        self.node_with(id, |builder| builder)
    }

    pub(crate) fn node_with(
        &self,
        id: &str,
        with: impl FnOnce(Builder<LeaderElection>) -> Builder<LeaderElection>,
    ) -> Node {
        self.node_on(&self.clock, id, with)
    }

    /// Creates a node that reads another clock than the world's.
    pub(crate) fn node_on(
        &self,
        clock: &Clock,
        id: &str,
        with: impl FnOnce(Builder<LeaderElection>) -> Builder<LeaderElection>,
    ) -> Node {
        self.build(clock, id, LeaderElectionConfig::default(), with)
    }

    /// Creates a node with this configuration.
    pub(crate) fn node_of(&self, id: &str, config: LeaderElectionConfig) -> Node {
        self.build(&self.clock, id, config, |builder| builder)
    }

    fn build(
        &self,
        clock: &Clock,
        id: &str,
        config: LeaderElectionConfig,
        with: impl FnOnce(Builder<LeaderElection>) -> Builder<LeaderElection>,
    ) -> Node {
        self.made.set(self.made.get() + 1);
        let line = ScriptedPort::new(&self.clock);
        let leases = line.lease((self.instance)(clock));
        let builder = LeaderElection::builder(leases.clone(), "job", config).candidate(id).clock(clock);
        let election = with(builder.entropy(&Entropy::from_seed(self.made.get()))).build().unwrap();
        Node { election, line, leases }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Runs the future for at most this time, and drops it if it has not ended.
    pub(crate) fn run<F: Future>(&self, time: Duration, future: F) -> Option<F::Output> {
        self.time.block_on(within(&self.clock, time, future))
    }
}

pub(crate) async fn within<F: Future>(clock: &Clock, time: Duration, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = clock.sleep(time) => None,
    }
}

/// Polls once with a waker that does nothing, for processes that are paused.
pub(crate) fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns all events received so far.
pub(crate) fn told(events: &mut Subscription<LeaderElectionEvent>) -> Vec<LeaderElectionEvent> {
    std::iter::from_fn(|| events.try_recv().ok().flatten()).map(|event| event.what).collect()
}
