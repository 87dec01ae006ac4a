//! The fourth law: what the size of a body costs, in bytes on the wire and in copies.
use bytes::Bytes;
use steadfast::{
    claim_check::{ClaimCheck, ClaimCheckConfig},
    queue::{Message, Queue, QueueExt},
    store::{Key, PutOptions},
    stream::{Event, Read, Topic},
};

use crate::{
    alloc, rooms,
    world::{S, World},
};

/// Bytes on the wire for each byte of a body, at most.
pub const WIRE: f64 = 1.05;

/// A body's way through a room, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Store,
    Queue,
    ClaimCheck,
    Stream,
    Cache,
    Saga,
}

/// The costs of one body.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Bytes on the wire for each time that the body passes it.
    pub wire: f64,
    /// Bytes that were allocated for each byte of the body, all passes together.
    pub copies: f64,
    pub allocations: u64,
}

impl Way {
    pub const ALL: [Self; 6] = [Self::Store, Self::Queue, Self::ClaimCheck, Self::Stream, Self::Cache, Self::Saga];

    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store: put, get",
            Self::Queue => "queue: send, receive, complete",
            Self::ClaimCheck => "claim check: send, receive, complete",
            Self::Stream => "stream: append, read",
            Self::Cache => "cache: load here, get in another process",
            Self::Saga => "saga: its state, two steps",
        }
    }

    /// Number of times that the body has to pass the wire.
    pub fn passes(self) -> u32 {
        match self {
            // A saga of n steps is written n + 1 times.
            Self::Saga => 3,
            _ => 2,
        }
    }

    /// Bytes beside the body in each pass, at most: keys, headers, versions, and requests without a body.
    pub fn frame(self) -> f64 {
        match self {
            Self::Store | Self::Queue => 100.0,
            Self::ClaimCheck | Self::Stream | Self::Cache | Self::Saga => 600.0,
        }
    }

    pub fn measure(self, size: usize) -> Cost {
        let world = World::new();
        let (here, there) = (world.process(0, 2), world.process(1, 2));
        let body = Bytes::from(vec![b'x'; size]);
        let body = || body.clone();
        match self {
            Self::Store => {
                let (one, other) = (here.store(), there.store());
                self.cost(&world, size, async {
                    one.put(Key::new("orders", "42"), body(), PutOptions::new()).await.expect("put");
                    drop(other.get(Key::new("orders", "42")).await.expect("a record"));
                })
            }
            Self::Queue => {
                let (one, other) = (here.queue(), there.queue());
                self.cost(&world, size, through(&*one, &*other, body()))
            }
            Self::ClaimCheck => {
                let checked = |process: &crate::world::Process| {
                    let built = ClaimCheck::builder(process.queue(), process.store(), ClaimCheckConfig::default());
                    built.clock(&process.clock).entropy(&process.entropy).build().expect("valid settings")
                };
                let (one, other) = (checked(&here), checked(&there));
                self.cost(&world, size, through(&one, &other, body()))
            }
            Self::Stream => {
                let (one, other) = (world.run(rooms::topic(&here, 1)), world.run(rooms::topic(&there, 1)));
                self.cost(&world, size, async {
                    one.append(0, vec![Event::new(body())]).await.expect("appended");
                    assert_eq!(other.read(0, Read::from(1)).await.expect("events").len(), 1);
                })
            }
            Self::Cache => {
                let (one, other) = (rooms::prices(&here), rooms::prices(&there));
                let value = "x".repeat(size);
                let loads = || async move { Ok::<_, std::io::Error>(value) };
                self.cost(&world, size, async {
                    one.get_or_load(&42, loads).await.expect("a value");
                    other
                        .get_or_load(&42, || async { Err::<String, _>(std::io::Error::other("a second load")) })
                        .await
                        .expect("a hit");
                })
            }
            Self::Saga => {
                let trips = rooms::trips(&here).build().expect("valid settings");
                let state = "x".repeat(size);
                self.cost(&world, size, async { drop(trips.run("trip-42", state).await.expect("its end")) })
            }
        }
    }

    fn cost(self, world: &World, size: usize, work: impl Future<Output = ()>) -> Cost {
        let before = world.counts.now();
        let ((), allocated) = alloc::count(|| world.run(work));
        let bytes = world.counts.now().since(before).bytes as f64;
        Cost {
            wire: bytes / f64::from(self.passes()),
            copies: allocated.bytes as f64 / size as f64,
            allocations: allocated.times,
        }
    }

    /// Returns the rule that a cost breaks.
    pub fn broken(self, size: usize, cost: Cost) -> Option<String> {
        let most = size as f64 * WIRE + self.frame();
        (cost.wire > most).then(|| format!("{}: {:.0} bytes on the wire for a body of {size}", self.name(), cost.wire))
    }
}

async fn through(one: &dyn Queue, other: &dyn Queue, body: Bytes) {
    one.send_one(Message::new(body)).await.expect("accepted");
    let message = other.receive_one(S(30)).await.expect("no failure").expect("a message");
    other.complete(&message.receipt).await.expect("settled");
}
