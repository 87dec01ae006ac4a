//! Metrics of leader election, queue listeners, filters and journals.
use super::super::registry::{Measured, Sample, Scope};
use crate::{
    journal::{Journal, JournalEvent},
    leader_election::{LeaderElection, LeaderElectionEvent, TermEnd},
    pipes_and_filters::{Filter, FilterEvent},
    queue_listener::QueueListener,
};

impl Measured for LeaderElection {
    const KIND: &'static str = "leader_election";

    fn measure(&self, scope: &Scope) -> Sample {
        let elected = scope.counter("steadfast_leader_election_elected_total", &[]);
        let ended =
            scope.by_label("steadfast_leader_election_ended_total", "reason", &TermEnd::ALL.map(TermEnd::as_str));
        let failures = scope.counter("steadfast_leader_election_call_failures_total", &[]);
        self.events().tap(move |event| match event {
            LeaderElectionEvent::Elected { .. } => elected.increment(1),
            LeaderElectionEvent::Ended { why, .. } => ended.increment(why.as_str()),
            LeaderElectionEvent::CallFailed { .. } => failures.increment(1),
            _ => {}
        });
        let election = self.clone();
        let leads = scope.gauge("steadfast_leader_election_is_leader", &[]);
        let healthy = scope.gauge("steadfast_leader_election_healthy", &[]);
        Box::new(move || {
            leads.set(f64::from(u8::from(election.is_leader())));
            healthy.set(f64::from(u8::from(election.health().healthy)));
        })
    }
}

impl Measured for QueueListener {
    const KIND: &'static str = "queue_listener";

    fn measure(&self, scope: &Scope) -> Sample {
        let gauge = |metric| scope.gauge(metric, &[]);
        let tasks = gauge("steadfast_queue_listener_tasks");
        let in_flight = gauge("steadfast_queue_listener_in_flight");
        let buffered = gauge("steadfast_queue_listener_buffered");
        let held = gauge("steadfast_queue_listener_held");
        let paused = gauge("steadfast_queue_listener_paused");
        let depth = |state| scope.gauge("steadfast_queue_listener_depth", &[("state", state)]);
        let depths = ["visible", "delayed", "in_flight"].map(depth);
        let dead_letters = gauge("steadfast_queue_listener_dead_letters");
        let counter = |metric| scope.counter(metric, &[]);
        let polls = counter("steadfast_queue_listener_polls_total");
        let empty_polls = counter("steadfast_queue_listener_empty_polls_total");
        let requests = counter("steadfast_queue_listener_requests_total");
        let messages = |event| scope.counter("steadfast_queue_listener_messages_total", &[("event", event)]);
        let events = [
            "received",
            "handled",
            "failed",
            "dead_lettered",
            "lease_lost",
            "duplicate",
            "released",
            "refused",
            "snoozed",
            "cancelled",
        ];
        let messages = events.map(messages);
        let listener = self.clone();
        Box::new(move || {
            let now = listener.state();
            tasks.set(f64::from(now.tasks));
            in_flight.set(now.in_flight as f64);
            buffered.set(now.buffered as f64);
            held.set(now.held as f64);
            paused.set(f64::from(u8::from(now.paused)));
            if let Some(depth) = now.depth {
                for (gauge, n) in depths.iter().zip([depth.visible, depth.delayed, depth.in_flight]) {
                    gauge.set(n as f64);
                }
            }
            if let Some(n) = now.dead_letters {
                dead_letters.set(n as f64);
            }
            polls.absolute(now.polls);
            empty_polls.absolute(now.empty_polls);
            requests.absolute(now.requests);
            let counts = [
                now.received,
                now.handled,
                now.failed,
                now.dead_lettered,
                now.leases_lost,
                now.duplicates,
                now.released,
                now.refused,
                now.snoozed,
                now.cancelled,
            ];
            messages.iter().zip(counts).for_each(|(counter, n)| counter.absolute(n));
        })
    }
}

impl Measured for Journal {
    const KIND: &'static str = "journal";

    fn measure(&self, scope: &Scope) -> Sample {
        let events = ["deferred", "defer_failed", "replayed", "failed", "poisoned"];
        let [deferred, defer_failed, replayed, failed, poisoned] =
            scope.counters("steadfast_journal_entries_total", "event", events);
        self.events().tap(move |event| match event {
            JournalEvent::Deferred { .. } => deferred.increment(1),
            JournalEvent::DeferFailed { .. } => defer_failed.increment(1),
            JournalEvent::Replayed { .. } => replayed.increment(1),
            JournalEvent::Failed { .. } => failed.increment(1),
            JournalEvent::Poisoned { .. } => poisoned.increment(1),
            _ => {}
        });
        Box::new(|| ())
    }
}

impl Measured for Filter {
    const KIND: &'static str = "filter";

    /// The metrics of its listener are among these.
    fn measure(&self, scope: &Scope) -> Sample {
        let events = ["send_failed", "may_repeat"];
        let [send_failed, may_repeat] = scope.counters("steadfast_filter_events_total", "event", events);
        self.events().tap(move |event| match event {
            FilterEvent::SendFailed { .. } => send_failed.increment(1),
            FilterEvent::MayRepeat { .. } => may_repeat.increment(1),
        });
        self.listener().measure(scope)
    }
}
