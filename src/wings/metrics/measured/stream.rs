//! Metrics of stream processors.
use super::super::registry::{Measured, Sample, Scope};
use crate::stream::{StreamProcessor, StreamProcessorEvent};

impl Measured for StreamProcessor {
    const KIND: &'static str = "stream_processor";

    fn measure(&self, scope: &Scope) -> Sample {
        let events =
            ["claimed", "released", "careful", "halted", "skipped", "attempt_failed", "dead_lettered", "call_failed"];
        let events = scope.by_label("steadfast_stream_processor_events_total", "event", &events);
        self.events().tap(move |event| {
            events.increment(match event {
                StreamProcessorEvent::MembersChanged { .. } => return,
                StreamProcessorEvent::Claimed { .. } => "claimed",
                StreamProcessorEvent::Released { .. } => "released",
                StreamProcessorEvent::Careful { .. } => "careful",
                StreamProcessorEvent::Halted { .. } => "halted",
                StreamProcessorEvent::Skipped { .. } => "skipped",
                StreamProcessorEvent::AttemptFailed { .. } => "attempt_failed",
                StreamProcessorEvent::DeadLettered { .. } => "dead_lettered",
                StreamProcessorEvent::CallFailed { .. } => "call_failed",
            });
        });
        let processor = self.clone();
        let partitions = scope.gauge("steadfast_stream_processor_partitions", &[]);
        let halted = scope.gauge("steadfast_stream_processor_halted", &[]);
        let lag = scope.gauge("steadfast_stream_processor_lag", &[]);
        let in_flight = scope.gauge("steadfast_stream_processor_in_flight", &[]);
        let lost = scope.gauge("steadfast_stream_processor_lost", &[]);
        Box::new(move || {
            let states = processor.state();
            partitions.set(states.len() as f64);
            halted.set(states.iter().filter(|state| state.halted.is_some()).count() as f64);
            lost.set(states.iter().map(|state| state.lost).sum::<u64>() as f64);
            lag.set(states.iter().map(|state| state.lag).sum::<u64>() as f64);
            in_flight.set(states.iter().map(|state| state.in_flight).sum::<usize>() as f64);
        })
    }
}
