//! Arrival of requests in a queue, even if the services cannot keep up, and the listener that takes them from it.
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use steadfast::{
    port::{Failure, PortErrorKind},
    queue::{Message, Queue},
    queue_listener::{Disposition, IdleConfig, QueueListener, QueueListenerConfig, Work},
    time::Clock,
};
use tokio::sync::Notify;

use crate::{args::Args, figures::Quantiles, ledger::Entry, request::Request, workflow::Workflow};

/// Arrival time of each request, from the start.
pub struct Arrivals {
    /// In order of time; each with its index in the input.
    due: Vec<(Duration, usize)>,
}

/// Messages per send request.
const BATCH: usize = 500;

impl Arrivals {
    /// Returns the arrivals of these indices. The last `spike` of them arrive together, after half of the others.
    pub fn new(places: Vec<usize>, args: &Args) -> Self {
        let every = args.ingest_rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate);
        let at = |n: usize| every.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
        let even = places.len().saturating_sub(args.spike as usize);
        let moment = at(even / 2);
        let due = |(n, place)| (if n < even { at(n) } else { moment }, place);
        let mut due: Vec<_> = places.into_iter().enumerate().map(due).collect();
        due.sort();
        Self { due }
    }

    /// Sends each request at its time; returns the delays until acceptance. Retries while the queue is full.
    pub async fn send(self, queue: &dyn Queue, clock: &Clock, most: &Mutex<u64>) -> Result<Quantiles, String> {
        // De-duplication ids make a repeated send safe. They differ between runs.
        let run = format!("{} {}", std::process::id(), clock.now().as_nanos());
        let message =
            |(_, place): &(Duration, usize)| Message::new(place.to_string()).deduplicate(format!("{run} {place}"));
        let (start, mut took) = (clock.now(), Vec::with_capacity(self.due.len()));
        let mut left = self.due.as_slice();
        while let Some((first, _)) = left.first() {
            clock.sleep_until(start + *first).await;
            let now = clock.now() - start;
            let ready = left.iter().take(BATCH).take_while(|(due, _)| *due <= now).count();
            let (some, rest) = left.split_at(ready);
            loop {
                match queue.send(some.iter().map(message).collect()).await {
                    Ok(_) => break,
                    Err(error) if error.backend().is_some_and(|error| error.kind() == PortErrorKind::Full) => {
                        clock.sleep(Duration::from_millis(5)).await;
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
            let accepted = clock.now() - start;
            took.extend(some.iter().map(|(due, _)| accepted.saturating_sub(*due)));
            if let Ok(depth) = queue.depth().await {
                let mut most = most.lock().unwrap_or_else(PoisonError::into_inner);
                *most = (*most).max(depth.visible + depth.in_flight);
            }
            left = rest;
        }
        Ok(Quantiles::of(took.into_iter()))
    }
}

/// Work to do, by its index in the input.
type Waiting = Mutex<HashMap<usize, (Request, Entry)>>;

/// Takes requests from the queue, and schedules each. Until its end the message is leased; if this process is killed, it
/// is delivered again.
pub struct Reception {
    pub listener: QueueListener,
    waiting: Waiting,
    workflow: Arc<Workflow>,
    /// Number of requests without an end; or the error that ends the run.
    open: Mutex<Result<usize, String>>,
    ended: Notify,
}

impl Reception {
    pub fn new(
        queue: Arc<dyn Queue>,
        workflow: &Arc<Workflow>,
        waiting: BTreeMap<usize, (Request, Entry)>,
        args: &Args,
    ) -> Result<Self, String> {
        // Takes somewhat more messages than are processed, so that owners can take turns among them.
        let in_hand = args.concurrency.saturating_mul(8).clamp(512, 10_000);
        let config = QueueListenerConfig::default().batch(256).tasks(1, in_hand).max_attempts(1_000);
        // The queue is in this process: a poll costs nothing.
        let idle =
            IdleConfig::between(Duration::from_millis(1), Duration::from_millis(20)).delta(Duration::from_millis(5));
        let listener = QueueListener::builder(queue, config.idle(idle))
            .clock(&workflow.calls.clock)
            .scaling(move |depth| u32::try_from(depth).unwrap_or(u32::MAX).max(in_hand))
            .build()
            .map_err(|e| e.to_string())?;
        let open = Mutex::new(Ok(waiting.len()));
        let waiting = Mutex::new(waiting.into_iter().collect());
        Ok(Self { listener, waiting, workflow: workflow.clone(), open, ended: Notify::new() })
    }

    /// Ends when all requests have ended, or the work is stopped.
    ///
    /// # Errors
    /// If a store fails. The ends so far are in the ledger, and the next run continues from there.
    pub async fn run(&self) -> Result<(), String> {
        let all = async {
            loop {
                let ended = self.ended.notified();
                if !matches!(*self.open(), Ok(1..)) {
                    return;
                }
                ended.await;
            }
        };
        let over = async {
            tokio::select! { () = all => {}, () = self.workflow.gate.stopped() => {} }
        };
        self.listener.run(over, |work: Work| self.handle(work)).await.map_err(|e| e.to_string())?;
        self.open().clone().map(drop)
    }

    async fn handle(&self, work: Work) -> Disposition {
        let place = std::str::from_utf8(&work.body).ok().and_then(|text| text.parse().ok());
        let Some(place) = place else { return Disposition::dead_letter("its body is no place in the input") };
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&place);
        // A redelivery: the request is being scheduled.
        let Some((request, entry)) = waiting else { return Disposition::Complete };
        let ended = self.workflow.schedule(place, request, entry).await;
        let mut open = self.open();
        match (ended, &mut *open) {
            (Ok(true), Ok(open)) => *open -= 1,
            (Err(why), open @ Ok(_)) => {
                *open = Err(why);
                // The others end, too.
                self.workflow.gate.stop();
            }
            _ => {}
        }
        drop(open);
        self.ended.notify_one();
        Disposition::Complete
    }

    fn open(&self) -> MutexGuard<'_, Result<usize, String>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Figures of the queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct Accepted {
    /// Time from a request's arrival until its acceptance.
    pub took: Quantiles,
    /// Maximum of messages in the queue, waiting or leased.
    pub deepest: u64,
    /// The listener's requests to the queue.
    pub requests: u64,
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use steadfast::queue::InMemoryQueue;

    use super::*;

    fn args(more: &[&str]) -> Args {
        Args::parse_from(["drone_delivery"].iter().chain(more))
    }

    #[test]
    fn requests_arrive_evenly_and_those_of_the_spike_together() {
        let all = Arrivals::new((0..14).collect(), &args(&["--ingest-rate", "10", "--spike", "4"]));
        let millis: Vec<u128> = all.due.iter().map(|(due, _)| due.as_millis()).collect();
        assert_eq!(millis, [0, 100, 200, 300, 400, 500, 500, 500, 500, 500, 600, 700, 800, 900]);
        let at_once = Arrivals::new((0..3).collect(), &args(&[]));
        assert!(at_once.due.iter().all(|(due, _)| due.is_zero()));
    }

    #[test]
    fn into_a_full_queue_they_are_sent_again_and_each_is_accepted_once() {
        let (clock, time) = Clock::manual();
        let queue = InMemoryQueue::builder("accepted").bounded(500).clock(&clock).build();
        let arrivals = Arrivals::new((0..1200).collect(), &args(&[]));
        let deepest = Mutex::new(0);
        let takes = async {
            let mut taken = 0;
            while taken < 1200 {
                clock.sleep(Duration::from_millis(20)).await;
                taken += queue.purge().await.unwrap();
            }
            taken
        };
        let (took, taken) = time.block_on(async { tokio::join!(arrivals.send(&queue, &clock, &deepest), takes) });
        assert_eq!((taken, *deepest.lock().unwrap()), (1200, 500));
        // The last 200 wait for two purges, and for the look after the second; on the manual clock, within the histogram's step.
        let longest = took.unwrap().max.as_micros();
        assert!((45_000..45_100).contains(&longest), "{longest}");
    }
}
