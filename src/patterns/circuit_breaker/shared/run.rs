//! The loop: reports what the breaker came to, and reads what others did.
use std::{future::Future, pin::pin, time::Duration};

use super::{
    super::Transition,
    CircuitReport, SharedCircuitBreaker, SharedCircuitBreakerConfig as Config, SharedCircuitBreakerEvent as Event,
    report::{Report, stands},
    sharing::{Inner, Opening, ROW},
};
use crate::{
    notify::{Notice, Notices},
    observe::{Missed, Subscription},
    port::Failure,
    race::{First, race},
    store::{DeleteOptions, Key, PutOptions, Scan, StoreError, StoreExt},
    time::Instant,
};

/// How long after a hint the next one is acted on: a flood of hints is none of requests.
const APART: Duration = Duration::from_millis(50);

impl SharedCircuitBreaker {
    /// Tells the others when the breaker opens, and opens it when they did, until `shutdown` is ready; then takes its own report back. Run it
    /// beside your service: without it the breaker is alone.
    ///
    /// Each [`poll`](Config::poll) is a read, and a write while the breaker is open by its own judgement. No call waits for it.
    ///
    /// # Cancel safety
    /// Dropped, it tells and hears no more. What it has reported ends after [`stale_after`](Config::stale_after) at most.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let inner = &*self.0;
        let mut shutdown = pin!(shutdown);
        race(shutdown.as_mut(), inner.share()).await;
        inner.withdraw(&inner.config()).await;
    }
}

/// A subscription to hints. Without one it is silent.
#[derive(Default)]
struct Hints {
    notices: Option<Notices>,
    /// Nothing is heard before.
    deaf_until: Instant,
}

impl Inner {
    async fn share(&self) {
        let mut hints = Hints::default();
        // Made before the look: what changes meanwhile is heard. What is missed is read from the state.
        let mut changes = self.breaker.transitions();
        loop {
            let seen = self.generation();
            let config = self.config();
            let next = self.now() + config.poll;
            if hints.notices.is_none() {
                hints.notices = self.subscribe(&config).await;
            }
            match self.own_opening() {
                Some(opening) => self.report(&config, opening).await,
                None => self.withdraw(&config).await,
            }
            self.look(&config).await;
            race(
                race(self.changed(&mut changes, seen), self.heard(&mut hints, config.poll)),
                self.clock().sleep_until(next),
            )
            .await;
        }
    }

    /// Waits until the breaker's state is of another generation. (Of a family all members' changes are heard.)
    async fn changed(&self, changes: &mut Subscription<Transition>, seen: u32) {
        while self.generation() == seen {
            if let Err(Missed::Closed) = changes.recv().await {
                return std::future::pending().await;
            }
        }
    }

    /// Makes one request to the store; nothing where it failed, or took too long.
    async fn ask<T>(&self, config: &Config, request: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
        let clock = self.clock();
        let latest = clock.now() + config.call_timeout;
        let kind = match race(request, clock.sleep_until(latest)).await {
            // It may have come in time, and be seen late.
            First::One(Ok(answer)) if clock.now() <= latest => {
                self.store_answered();
                return Some(answer);
            }
            First::One(Err(error)) => error.backend().map(|failed| failed.kind()),
            First::One(Ok(_)) | First::Other(()) => None,
        };
        self.store_failed(kind);
        None
    }

    /// Writes, or renews, the report of this opening.
    async fn report(&self, config: &Config, Opening { generation, left }: Opening) {
        self.mine.lock().may_be_there = true;
        let value = Report::encode(&self.opening(generation), left);
        // A process that is gone does not renew it.
        let options = PutOptions::new().ttl(left.min(config.stale_after));
        let put = self.store.put(Key::new(&self.partition, &self.row), value, options);
        if self.ask(config, put).await.is_none() {
            return;
        }
        let is_new = self.mine.lock().told.replace(generation) != Some(generation);
        if is_new {
            self.tell(|| Event::Reported { open_for: left });
            self.hint(config).await;
        }
    }

    /// Takes back what was reported, or may have been.
    async fn withdraw(&self, config: &Config) {
        if !self.mine.lock().may_be_there {
            return;
        }
        let delete = self.store.delete(Key::new(&self.partition, &self.row), DeleteOptions::default());
        if self.ask(config, delete).await.is_some() {
            *self.mine.lock() = super::sharing::Mine::default();
        }
    }

    /// Reads what others report, and opens with them.
    async fn look(&self, config: &Config) {
        let began = self.now();
        let scan = Scan::partition(&self.partition).prefix(ROW);
        let Some(rows) = self.ask(config, self.store.scan_all(scan)).await else { return };
        let now = self.now();
        let longest = self.longest_opening();
        let others = rows.iter().filter(|row| row.row != self.row).filter_map(|row| {
            // One that cannot be read is of another release, and none of ours.
            let report = Report::decode(row.row.strip_prefix(ROW)?, &row.value).ok()?;
            // As if it had been read when it was asked for: never longer than its process said.
            let left = report.left.saturating_sub(now - began).min(longest);
            (!left.is_zero()).then_some(Report { left, ..report })
        });
        let reports: Vec<Report> = others.collect();
        let until = |report: &Report| CircuitReport { process: report.process.clone(), until: now + report.left };
        *self.others.lock() = reports.iter().map(until).collect();
        let votes = config.agreement.votes();
        let opens = self.followed.lock().opens(&reports, votes, now);
        // An opening that ends early where it was made ends here, too; one that is longer than this breaker takes at once goes on.
        self.stay_open_with_others(now, stands(&reports, votes).unwrap_or_default());
        if let Some(open_for) = opens
            && self.open_with_others(open_for)
        {
            self.tell(|| Event::OpenedWithOthers { reports: reports.len(), open_for });
        }
    }

    /// Tells the others to look. A hint that is lost is found by looking.
    async fn hint(&self, config: &Config) {
        let Some(notifier) = &self.notifier else { return };
        let published = notifier.publish(&self.partition, self.row.clone().into());
        let kind = match race(published, self.clock().sleep(config.call_timeout)).await {
            First::One(Ok(())) => return,
            First::One(Err(error)) => Some(error.kind()),
            First::Other(()) => None,
        };
        self.tell(|| Event::NotifierFailed { kind });
    }

    /// `None` where it has to do without, until it looks again.
    async fn subscribe(&self, config: &Config) -> Option<Notices> {
        let subscribed = self.notifier.as_ref()?.subscribe(&self.partition);
        let kind = match race(subscribed, self.clock().sleep(config.call_timeout)).await {
            First::One(Ok(notices)) => return Some(notices),
            First::One(Err(error)) => Some(error.kind()),
            First::Other(()) => None,
        };
        self.tell(|| Event::NotifierFailed { kind });
        None
    }

    /// Waits for a hint of another, or a gap in which one may have been; for ever without a notifier.
    async fn heard(&self, hints: &mut Hints, poll: Duration) {
        let Some(notices) = &mut hints.notices else { return std::future::pending().await };
        self.clock().sleep_until(hints.deaf_until).await;
        let apart = loop {
            match notices.recv().await {
                Notice::Message(row) if row == self.row.as_bytes() => {}
                Notice::Message(_) => break APART,
                // A line that breaks again and again is no better than looking, and must not be worse.
                Notice::Gap => break poll,
            }
        };
        hints.deaf_until = self.now() + apart;
    }
}
