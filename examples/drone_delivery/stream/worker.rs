//! A process that owns some of the partitions: it schedules the delivery of each event by its saga, until its standard
//! input ends.
use std::{
    collections::HashMap,
    error::Error,
    io::{self, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use steadfast::{
    port::FencingToken,
    saga::{Saga, SagaError, SagaOutcome},
    stream::{Delivered, StreamProcessorEvent},
    throttling::{Quota, RateLimiter},
    time::Clock,
    work::EventDisposition,
};
use tokio::sync::watch;

use super::{Place, processor};
use crate::{args::Args, engine::Engine, record, request::Request, workflow};

/// Variables by which the first process names its workers, and the services' addresses.
pub const NAME: &str = "STEADFAST_EXAMPLE_WORKER";
pub const SERVICES: &str = "STEADFAST_EXAMPLE_SERVICES";

/// Deliveries that all workers start per second, unless `--rate` says otherwise: two cores can do no more beside the
/// ingestion.
const RATE: u32 = 240;

/// A line of a worker, twice a second.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Line {
    /// Deliveries that it has scheduled, and those that were rejected.
    pub scheduled: u64,
    pub rejected: u64,
    /// Partitions that it has claimed so far, each time counted.
    pub claims: u64,
    /// Events whose sagas another process had begun.
    pub resumed: u64,
    /// Partitions that it owns: the number, the lag, and the events in progress.
    pub owned: Vec<(u16, u64, usize)>,
    pub halted: Vec<String>,
}

#[derive(Default)]
struct Counts {
    scheduled: AtomicU64,
    rejected: AtomicU64,
    claims: AtomicU64,
    resumed: AtomicU64,
}

/// The first event of each term. A partition's former owner may have begun the sagas of the events that follow, as far
/// as a checkpoint allows.
#[derive(Default)]
struct Terms(Mutex<HashMap<u16, (FencingToken, u64)>>);

impl Terms {
    fn may_have_begun(&self, event: &Delivered, max_ahead: u64) -> bool {
        let mut terms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (offset, token) = (event.position.offset, event.token());
        let (of, first) = terms.entry(event.position.partition).or_insert((token, offset));
        if *of != token {
            (*of, *first) = (token, offset);
        }
        event.attempt() > 1 || offset < first.saturating_add(max_ahead)
    }
}

pub async fn run(args: &Args, name: &str) -> Result<(), Box<dyn Error>> {
    let engine = Engine::of_parent().ok_or("a worker is started by the first process")?;
    let (clock, place) = (Clock::tokio(), Place::open(&engine, args).await?);
    let calls = super::calls(args, &std::env::var(SERVICES)?)?;
    let record = calls.record.clone();
    let sagas = workflow::deliveries(&calls, place.store.clone(), true)?;
    let counts = Arc::new(Counts::default());
    let processor = processor(&place).member(name).dead_letters(place.letters.clone()).on_event({
        let counts = counts.clone();
        move |event: &steadfast::observe::Event<StreamProcessorEvent>| {
            if let StreamProcessorEvent::Claimed { .. } = event.what {
                counts.claims.fetch_add(1, Relaxed);
            }
        }
    });
    let (processor, terms) = (processor.build()?, Terms::default());
    let (stop, stopped) = watch::channel(false);
    std::thread::spawn(move || {
        // The first process closes its end when the worker is to stop, also by dying.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        stop.send_replace(true);
    });
    let until_stopped = || {
        let mut stopped = stopped.clone();
        async move { drop(stopped.wait_for(|stopped| *stopped).await) }
    };
    let tells = async {
        while !*stopped.borrow() {
            clock.sleep(Duration::from_millis(500)).await;
            let state = processor.state();
            // The figures of calls are not shown here.
            *record.lock() = record::Inner::default();
            tell(&Line {
                scheduled: counts.scheduled.load(Relaxed),
                rejected: counts.rejected.load(Relaxed),
                claims: counts.claims.load(Relaxed),
                resumed: counts.resumed.load(Relaxed),
                owned: state.iter().map(|part| (part.partition, part.lag, part.in_flight)).collect(),
                halted: state.iter().filter_map(|part| part.halted.clone()).collect(),
            });
        }
    };
    // The services' capacity is divided among the workers. What arrives faster waits in the topic.
    let rate = args.rate.unwrap_or(RATE).div_ceil(args.processes);
    let starts = (rate > 0).then(|| RateLimiter::new(Quota::per_second(rate).burst(rate.div_ceil(10)))).transpose()?;
    let ahead = u64::from(super::config().max_ahead);
    let schedules = processor.run(until_stopped(), |event: Delivered| {
        let (sagas, counts, starts) = (&sagas, &counts, &starts);
        let may_have_begun = terms.may_have_begun(&event, ahead);
        async move {
            if let Some(starts) = starts {
                starts.acquire().await;
            }
            schedule(sagas, &event, may_have_begun, counts).await
        }
    });
    // The supervisor: it finds sagas that stand still, although the event of each has an owner.
    let (scheduled, supervised, ()) = tokio::join!(schedules, sagas.recover(until_stopped()), tells);
    scheduled?;
    supervised?;
    Ok(())
}

fn tell(line: &Line) {
    if let Ok(text) = serde_json::to_string(line) {
        // A closed pipe means that the first process is gone; the standard input then ends, too.
        let _ = writeln!(io::stdout().lock(), "{text}");
    }
}

/// Schedules the delivery of an event. Its partition has one owner, so the executor of a saga that exists is gone.
async fn schedule(sagas: &Saga<Request>, event: &Delivered, may_have_begun: bool, counts: &Counts) -> EventDisposition {
    let request: Request = match serde_json::from_slice(&event.event.body) {
        Ok(request) => request,
        Err(error) => return EventDisposition::dead_letter(error),
    };
    let id = request.id.to_string();
    let begun = if may_have_begun { sagas.resume(&id).await } else { Err(SagaError::NotFound) };
    let ended = match begun {
        Err(SagaError::NotFound) => sagas.run(&id, request).await,
        resumed => {
            counts.resumed.fetch_add(1, Relaxed);
            resumed
        }
    };
    match ended {
        Ok(SagaOutcome::Completed(_)) => counts.scheduled.fetch_add(1, Relaxed),
        Ok(SagaOutcome::Compensated { .. }) => counts.rejected.fetch_add(1, Relaxed),
        // An operator retries it. The event is kept with the dead letters.
        Ok(SagaOutcome::Stuck { step, reason }) => return EventDisposition::dead_letter(format!("{step}: {reason}")),
        Ok(_) => return EventDisposition::retry("the saga ended in an unknown way"),
        Err(error) => return EventDisposition::retry(error),
    };
    EventDisposition::Complete
}
