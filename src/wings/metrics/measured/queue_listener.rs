//! Metrics of queue listeners.
use super::super::registry::{Measured, Sample, Scope};
use crate::queue_listener::QueueListener;

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
