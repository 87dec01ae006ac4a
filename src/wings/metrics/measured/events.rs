//! Metrics of logs of commits, their aggregates and outboxes, and of materialized views.
use super::super::registry::{Measured, Sample, Scope};
use crate::{
    event_sourcing::{Aggregate, AggregateEvent, AggregateStore, EventStore, Outbox, OutboxEvent},
    materialized_view::{Projection, View, ViewEvent},
};

impl Measured for EventStore {
    const KIND: &'static str = "event_store";

    fn measure(&self, scope: &Scope) -> Sample {
        let pending = scope.gauge("steadfast_event_store_pending", &[]);
        let of = |outcome| scope.counter("steadfast_event_store_commits_total", &[("outcome", outcome)]);
        let commits = ["committed", "repeated", "refused", "failed"].map(of);
        let requests = scope.counter("steadfast_event_store_requests_total", &[]);
        let lost_replies = scope.counter("steadfast_event_store_lost_replies_total", &[]);
        let log = self.clone();
        Box::new(move || {
            let now = log.state();
            pending.set(f64::from(now.pending));
            let counts = [now.committed, now.repeated, now.refused, now.failed];
            commits.iter().zip(counts).for_each(|(counter, n)| counter.absolute(n));
            requests.absolute(now.requests);
            lost_replies.absolute(now.lost_replies);
        })
    }
}

impl<A: Aggregate> Measured for AggregateStore<A> {
    const KIND: &'static str = "aggregate_store";

    fn measure(&self, scope: &Scope) -> Sample {
        let events = ["conflicted", "snapshot_ignored", "long_stream", "reply_not_sent"];
        let events = scope.by_label("steadfast_aggregate_store_events_total", "event", &events);
        self.events().tap(move |event| {
            events.increment(match event {
                AggregateEvent::Conflicted { .. } => "conflicted",
                AggregateEvent::SnapshotIgnored { .. } => "snapshot_ignored",
                AggregateEvent::LongStream { .. } => "long_stream",
                AggregateEvent::ReplyNotSent { .. } => "reply_not_sent",
            });
        });
        Box::new(|| {})
    }
}

impl Measured for Outbox {
    const KIND: &'static str = "outbox";

    fn measure(&self, scope: &Scope) -> Sample {
        let events = ["send_failed", "store_failed", "stands_by"];
        let events = scope.by_label("steadfast_outbox_events_total", "event", &events);
        self.events().tap(move |event| {
            events.increment(match event {
                OutboxEvent::SendFailed { .. } => "send_failed",
                OutboxEvent::StoreFailed { .. } => "store_failed",
                OutboxEvent::StandsBy => "stands_by",
            });
        });
        Box::new(|| {})
    }
}

impl<P: Projection> Measured for View<P> {
    const KIND: &'static str = "view";

    fn measure(&self, scope: &Scope) -> Sample {
        let names = ["switched", "stands_by", "parked", "rebuild_stopped", "stopped", "failed"];
        let events = scope.by_label("steadfast_view_events_total", "event", &names);
        let (records, rows) =
            (scope.counter("steadfast_view_records_total", &[]), scope.counter("steadfast_view_rows_total", &[]));
        self.events().tap(move |event| {
            events.increment(match event {
                ViewEvent::Projected { records: folded, rows: written, .. } => {
                    records.increment(*folded);
                    rows.increment(*written);
                    return;
                }
                ViewEvent::Switched { .. } => "switched",
                ViewEvent::StandsBy { .. } => "stands_by",
                ViewEvent::Parked { .. } => "parked",
                ViewEvent::RebuildStopped { .. } => "rebuild_stopped",
                ViewEvent::Stopped { .. } => "stopped",
                ViewEvent::Failed { .. } => "failed",
            });
        });
        Box::new(|| ())
    }
}
