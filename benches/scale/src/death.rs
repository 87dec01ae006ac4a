//! The second law: one process dies. For how long has its work no owner, by the number of processes?
use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::AbortHandle;
use steadfast::{
    observe,
    queue::{Message, QueueExt},
    queue_listener::{QueueListener, QueueListenerConfig, Work},
    saga::SagaEvent,
    stream::{Delivered, StreamProcessorEvent},
    work::EventDisposition,
};

use crate::{
    rooms,
    world::{MS, Process, S, World},
};

/// Work that a process dies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    Leadership,
    Message,
    Partitions(u16),
    Saga,
    Load,
}

/// Longest time that any of them may take.
const LIMIT: Duration = Duration::from_secs(600);

impl Owned {
    pub const ALL: [Self; 6] =
        [Self::Leadership, Self::Message, Self::Partitions(32), Self::Partitions(1024), Self::Saga, Self::Load];

    pub fn name(self) -> String {
        match self {
            Self::Leadership => "leadership".into(),
            Self::Message => "a message in its handler".into(),
            Self::Partitions(partitions) => format!("its part of {partitions} partitions of a stream"),
            Self::Saga => "a saga in a step".into(),
            Self::Load => "a load of a cache with a remote tier".into(),
        }
    }

    /// Returns the stated longest time without an owner.
    pub fn at_most(self) -> Duration {
        match self {
            Self::Leadership => S(17),
            Self::Message => S(31),
            Self::Partitions(_) => S(27),
            // `takeover_after`, and two scans.
            Self::Saga => S(120),
            Self::Load => MS(1500),
        }
    }

    /// Returns the time from the death of a process to the next owner of all its work.
    pub fn without_owner(self, processes: usize) -> Option<Duration> {
        match self {
            Self::Leadership => leadership(processes),
            Self::Message => message(processes),
            Self::Partitions(partitions) => partitions_of(processes, partitions),
            Self::Saga => saga(processes),
            Self::Load => load(processes),
        }
    }
}

/// Starts all processes, and returns the handles that kill them.
fn start<F: Future<Output = ()> + Send + 'static>(
    world: &World,
    processes: usize,
    process: impl Fn(Process) -> F,
) -> Vec<AbortHandle> {
    (0..processes).map(|number| world.start(process(world.process(number, processes)))).collect()
}

fn leadership(processes: usize) -> Option<Duration> {
    let world = World::new();
    let elections = Arc::new(Mutex::new(Vec::new()));
    let handles = start(&world, processes, |process| {
        let election = rooms::elector(&process);
        elections.lock().expect("no panic").push(election.clone());
        async move {
            election.run(pending(), |term| async move { term.lost().await }).await.expect("no permanent failure");
        }
    });
    world.pass(S(60));
    let elections = elections.lock().expect("no panic").clone();
    let leader = elections.iter().position(|election| election.is_leader())?;
    handles[leader].abort();
    let others = || elections.iter().enumerate().filter(|(number, _)| *number != leader);
    world.until(LIMIT, MS(10), || others().any(|(_, election)| election.is_leader()))
}

fn message(processes: usize) -> Option<Duration> {
    let world = World::new();
    // The process whose handler never ends, and the end of the message.
    let (first, handled) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::new(AtomicBool::new(false)));
    let handles = start(&world, processes, |process| {
        let (first, handled) = (first.clone(), handled.clone());
        async move {
            let listener = QueueListener::builder(process.queue(), QueueListenerConfig::default())
                .clock(&process.clock)
                .entropy(&process.entropy)
                .build()
                .expect("valid settings");
            let (first, handled, number) = (&first, &handled, process.number);
            let ran = listener.run(pending(), |_: Work| async move {
                if first.compare_exchange(usize::MAX, number, Relaxed, Relaxed).is_ok() {
                    pending::<()>().await;
                }
                handled.store(true, Relaxed);
            });
            ran.await.expect("no permanent failure");
        }
    });
    world.pass(S(60));
    let queue = world.process(0, processes).queue();
    world.run(async { queue.send_one(Message::new("pay 42")).await }).expect("accepted");
    // The lease was renewed a moment before, which is the worst time.
    world.pass(S(10) + MS(100));
    handles.get(first.load(Relaxed))?.abort();
    world.until(LIMIT, MS(10), || handled.load(Relaxed))
}

fn partitions_of(processes: usize, partitions: u16) -> Option<Duration> {
    let world = World::new();
    let owners = Arc::new(Mutex::new(vec![usize::MAX; usize::from(partitions)]));
    let handles = start(&world, processes, |process| {
        let owners = owners.clone();
        async move {
            let topic = rooms::topic(&process, partitions).await;
            let number = process.number;
            let member =
                rooms::member(&process, &topic).on_event(move |event: &observe::Event<StreamProcessorEvent>| {
                    if let StreamProcessorEvent::Claimed { partition, .. } = event.what {
                        owners.lock().expect("no panic")[usize::from(partition)] = number;
                    }
                });
            let member = member.build().expect("valid settings");
            let ran = member.run(pending(), |_: Delivered| async { EventDisposition::Complete });
            ran.await.expect("no permanent failure");
        }
    });
    world.pass(S(90));
    let dies = owners.lock().expect("no panic")[0];
    handles.get(dies)?.abort();
    world.until(LIMIT, MS(10), || !owners.lock().expect("no panic").contains(&dies))
}

fn saga(processes: usize) -> Option<Duration> {
    let world = World::new();
    let taken = Arc::new(AtomicBool::new(false));
    let handles = start(&world, processes, |process| {
        let taken = taken.clone();
        async move {
            let trips = rooms::trips(&process).on_event(move |event: &observe::Event<SagaEvent>| {
                if matches!(event.what, SagaEvent::TakenOver { .. }) {
                    taken.store(true, Relaxed);
                }
            });
            let trips = trips.build().expect("valid settings");
            if process.number == 0 {
                process.clock.sleep(S(60)).await;
                drop(trips.run("trip-42", "to London".into()).await);
            } else {
                process.clock.sleep(MS(process.entropy.up_to(30_000))).await;
                trips.recover(pending()).await.expect("no permanent failure");
            }
        }
    });
    world.pass(S(65));
    handles[0].abort();
    world.until(LIMIT, MS(10), || taken.load(Relaxed))
}

fn load(processes: usize) -> Option<Duration> {
    let world = World::new();
    let found = Arc::new(AtomicUsize::new(0));
    let handles = start(&world, processes, |process| {
        let found = found.clone();
        async move {
            let cache = rooms::prices(&process);
            let clock = &process.clock;
            // The first one claims the key, and dies; the others ask at the same moment.
            let (begins, takes) = if process.number == 0 { (S(9), S(3600)) } else { (S(10), MS(5)) };
            clock.sleep(begins).await;
            let loads = || {
                let clock = clock.clone();
                async move {
                    clock.sleep(takes).await;
                    Ok::<_, std::io::Error>("117".to_owned())
                }
            };
            cache.get_or_load(&42, loads).await.expect("a value");
            found.fetch_add(1, Relaxed);
        }
    });
    world.pass(S(9) + MS(500));
    handles[0].abort();
    world.pass(MS(500));
    world.until(LIMIT, MS(1), || found.load(Relaxed) == processes - 1)
}
