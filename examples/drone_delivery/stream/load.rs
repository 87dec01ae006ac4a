//! The ingestion: events arrive at a rate, whatever the topic does, and each waits for its acceptance.
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use steadfast::{
    port::PortErrorKind,
    stream::{Event, Position, Producer},
    time::Clock,
};
use uuid::Uuid;

use crate::request::Request;

/// Resolution, and number of slots, of the durations of acceptance.
const SLOT: Duration = Duration::from_micros(100);
const SLOTS: usize = 200_000;

/// Interval of arrivals: those of a millisecond come together.
const TICK: Duration = Duration::from_millis(1);

/// The rate at which events arrive, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Phase {
    pub rate: u64,
    pub lasts: Duration,
}

/// The accepted events, by their places.
pub struct Accepted {
    /// Number of accepted events by duration.
    took: Vec<AtomicU64>,
    pub arrived: AtomicU64,
    pub count: AtomicU64,
    /// Refused because too many waited. Their clients are told so.
    pub full: AtomicU64,
    pub failed: AtomicU64,
    /// Ids of the accepted deliveries, by partition and offset.
    places: Vec<Mutex<Vec<Uuid>>>,
    pub violations: Mutex<Vec<String>>,
}

impl Accepted {
    pub fn new(partitions: u16) -> Arc<Self> {
        Arc::new(Self {
            took: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            arrived: AtomicU64::new(0),
            count: AtomicU64::new(0),
            full: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            places: (0..partitions).map(|_| Mutex::default()).collect(),
            violations: Mutex::default(),
        })
    }

    fn accept(&self, at: Position, id: Uuid, took: Duration) {
        let slot = (took.as_micros() / SLOT.as_micros()) as usize;
        self.took[slot.min(SLOTS - 1)].fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        let mut places = self.lock(at.partition);
        let index = at.offset as usize - 1;
        if places.len() <= index {
            places.resize(index + 1, Uuid::nil());
        }
        if !std::mem::replace(&mut places[index], id).is_nil() {
            self.violates(format!("the place {at} was given twice"));
        }
    }

    pub fn violates(&self, what: String) {
        let mut violations = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        if violations.len() < 10 {
            violations.push(what);
        }
    }

    fn lock(&self, partition: u16) -> std::sync::MutexGuard<'_, Vec<Uuid>> {
        self.places[usize::from(partition)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the ids of a partition by offset - 1; the nil id where nothing was accepted.
    pub fn ids(&self, partition: u16) -> Vec<Uuid> {
        self.lock(partition).clone()
    }

    /// Returns the duration below which this share of the events was accepted.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count.load(Relaxed) as f64 * share).ceil() as u64;
        let mut so_far = 0;
        for (slot, count) in self.took.iter().enumerate() {
            so_far += count.load(Relaxed);
            if so_far >= wanted.max(1) {
                return SLOT * (slot as u32 + 1);
            }
        }
        Duration::ZERO
    }
}

/// The text of a request around its id, which each repetition replaces.
struct Template {
    request: Request,
    before: String,
    after: String,
}

impl Template {
    fn new(request: &Request) -> Option<Self> {
        let text = serde_json::to_string(request).ok()?;
        let (before, after) = text.split_once(&request.id.to_string())?;
        Some(Self { request: request.clone(), before: before.to_owned(), after: after.to_owned() })
    }

    /// Returns the id of a repetition, and its event.
    fn event(&self, n: u64) -> (Uuid, Event) {
        let id = self.request.repeated_id(n);
        let text = id.to_string();
        let body = [&self.before, &*text, &self.after].concat();
        (id, Event::new(body).key(text))
    }
}

/// Lets events arrive: the requests, repeated under new ids.
pub async fn arrive(requests: Vec<Request>, phases: Vec<Phase>, producer: Producer, accepted: Arc<Accepted>) {
    let templates: Vec<_> = requests.iter().filter_map(Template::new).collect();
    let clock = Clock::tokio();
    let (mut due, mut n) = (clock.now(), 0_usize);
    for phase in phases {
        let end = due + phase.lasts;
        let mut owed = 0.0;
        while due < end {
            due = due + TICK;
            if due > clock.now() {
                clock.sleep_until(due).await;
            } else {
                // It is late: the others have their turn, too.
                tokio::task::yield_now().await;
            }
            owed += phase.rate as f64 * TICK.as_secs_f64();
            while owed >= 1.0 {
                owed -= 1.0;
                let (id, event) = templates[n % templates.len()].event((n / templates.len()) as u64);
                n += 1;
                let (producer, accepted, clock) = (producer.clone(), accepted.clone(), clock.clone());
                accepted.arrived.fetch_add(1, Relaxed);
                tokio::spawn(async move {
                    match producer.append(event).await {
                        // From the moment at which it was to arrive: a generator that is late hides nothing.
                        Ok(appended) => accepted.accept(appended.position, id, clock.now() - due),
                        Err(error) if error.kind() == PortErrorKind::Full => drop(accepted.full.fetch_add(1, Relaxed)),
                        Err(error) => {
                            accepted.failed.fetch_add(1, Relaxed);
                            accepted.violates(format!("an append failed: {error}"));
                        }
                    }
                });
            }
        }
    }
    while producer.pending() > 0 {
        clock.sleep(TICK).await;
    }
}
