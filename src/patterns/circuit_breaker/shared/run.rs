//! The loop: reports the breaker's own openings, and reads those of others.
use std::{future::Future, pin::pin, time::Duration};

use super::{
    super::Transition,
    CircuitReport, SharedCircuitBreaker, SharedCircuitBreakerConfig as Config, SharedCircuitBreakerEvent as Event,
    report::{Report, stands},
    sharing::{Inner, Opening, ROW},
};
use crate::{
    notify::Hints,
    observe::{Missed, Subscription},
    port::{AskError, PortError, ask, ask_on_time},
    race::race,
    store::{DeleteOptions, Key, PutOptions, Scan, StoreError, StoreExt},
};

/// Minimum interval between two hints that cause a poll, so that a flood of hints causes no flood
/// of requests.
const APART: Duration = Duration::from_millis(50);

impl SharedCircuitBreaker {
    /// Shares openings until `shutdown` is ready, then deletes its own report. Run it beside your
    /// service: without it the breaker acts alone.
    ///
    /// Each [`poll`](Config::poll) is one read, and one write while the breaker is open by its own
    /// rules. No call waits for it.
    ///
    /// # Cancel safety
    /// Dropping the future stops the sharing. Its report expires after
    /// [`stale_after`](Config::stale_after) at most.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let inner = &*self.0;
        let mut shutdown = pin!(shutdown);
        race(shutdown.as_mut(), inner.share()).await;
        inner.withdraw(&inner.config()).await;
    }
}

impl Inner {
    async fn share(&self) {
        let mut hints = Hints::new(APART);
        // Subscribed before the first poll: later changes are received. Missed ones do no harm,
        // because the state is read.
        let mut changes = self.breaker.transitions();
        loop {
            let seen = self.generation();
            let config = self.config();
            let next = self.now() + config.poll;
            let timing = (self.clock(), config.call_timeout);
            let subscribed = hints.subscribe(self.notifier.as_ref(), &self.partition, timing).await;
            self.notified(subscribed);
            match self.own_opening() {
                Some(opening) => self.report(&config, opening).await,
                None => self.withdraw(&config).await,
            }
            self.look(&config).await;
            let heard = hints.recv(self.clock(), config.poll, |row| *row != self.row.as_bytes());
            race(race(self.changed(&mut changes, seen), heard), self.clock().sleep_until(next)).await;
        }
    }

    /// Waits until the breaker's state has another generation. In a registry, the changes of all
    /// breakers wake this task.
    async fn changed(&self, changes: &mut Subscription<Transition>, seen: u32) {
        while self.generation() == seen {
            if let Err(Missed::Closed) = changes.recv().await {
                return std::future::pending().await;
            }
        }
    }

    /// Makes one request to the store. Returns `None` if it failed or timed out.
    async fn ask<T>(&self, config: &Config, request: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
        match ask_on_time(self.clock(), config.call_timeout, request).await {
            Ok(answer) => {
                self.store_answered();
                Some(answer)
            }
            Err(error) => {
                self.store_failed(error.kind());
                None
            }
        }
    }

    /// Writes or renews the report of this opening.
    async fn report(&self, config: &Config, Opening { generation, left }: Opening) {
        self.mine.lock().may_be_there = true;
        let value = Report::encode(&self.opening(generation), left);
        // The report of a process that is gone expires.
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

    /// Deletes the report, if there may be one.
    async fn withdraw(&self, config: &Config) {
        if !self.mine.lock().may_be_there {
            return;
        }
        let delete = self.store.delete(Key::new(&self.partition, &self.row), DeleteOptions::default());
        if self.ask(config, delete).await.is_some() {
            *self.mine.lock() = super::sharing::Mine::default();
        }
    }

    /// Reads the reports of others, and opens with them.
    async fn look(&self, config: &Config) {
        let began = self.now();
        let scan = Scan::partition(&self.partition).prefix(ROW);
        let Some(rows) = self.ask(config, self.store.scan_all(scan)).await else { return };
        let now = self.now();
        let longest = self.longest_opening();
        let others = rows.iter().filter(|row| row.row != self.row).filter_map(|row| {
            // A malformed report is of another release, and is skipped.
            let report = Report::decode(row.row.strip_prefix(ROW)?, &row.value).ok()?;
            // Counted from the start of the request: never longer than its process said.
            let left = report.left.saturating_sub(now - began).min(longest);
            (!left.is_zero()).then_some(Report { left, ..report })
        });
        let reports: Vec<Report> = others.collect();
        let until = |report: &Report| CircuitReport { process: report.process.clone(), until: now + report.left };
        *self.others.lock() = reports.iter().map(until).collect();
        let votes = config.agreement.votes();
        let opens = self.followed.lock().opens(&reports, votes, now);
        // An opening that ended early in its own process ends here too; one that is longer than the limit of
        // one poll is prolonged.
        self.stay_open_with_others(now, stands(&reports, votes).unwrap_or_default());
        if let Some(open_for) = opens
            && self.open_with_others(open_for)
        {
            self.tell(|| Event::OpenedWithOthers { reports: reports.len(), open_for });
        }
    }

    /// Notifies the others. A lost hint is made up for by their next poll.
    async fn hint(&self, config: &Config) {
        let Some(notifier) = &self.notifier else { return };
        let published = notifier.publish(&self.partition, self.row.clone().into());
        self.notified(ask(self.clock(), config.call_timeout, published).await);
    }

    fn notified(&self, result: Result<(), AskError<PortError>>) {
        if let Err(error) = result {
            self.tell(|| Event::NotifierFailed { kind: error.kind() });
        }
    }
}
