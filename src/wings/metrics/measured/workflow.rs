//! Metrics of sagas and their schedulers.
use super::super::registry::{Measured, Sample, Scope};
use crate::{
    saga::{Saga, SagaEvent, StepOutcomeKind as Kind},
    scheduler::{Scheduler, SchedulerEvent},
};

impl<T: Send + Sync + 'static> Measured for Saga<T> {
    const KIND: &'static str = "saga";

    fn measure(&self, scope: &Scope) -> Sample {
        let events = [
            "started",
            "taken_over",
            "compensating",
            "completed",
            "compensated",
            "stuck",
            "superseded",
            "incompatible",
            "store_failed",
        ];
        let events = scope.by_label("steadfast_saga_events_total", "event", &events);
        let kinds = [Kind::Failed, Kind::Abandoned, Kind::Unknown, Kind::NotSent, Kind::Refused, Kind::Pending];
        let attempts = scope.by_label("steadfast_saga_attempts_total", "outcome", &kinds.map(Kind::as_str));
        self.events().tap(move |event| {
            events.increment(match event {
                SagaEvent::AttemptFailed { outcome, .. } => return attempts.increment(outcome),
                SagaEvent::Started { .. } => "started",
                SagaEvent::TakenOver { .. } => "taken_over",
                SagaEvent::Compensating { .. } => "compensating",
                SagaEvent::Completed { .. } => "completed",
                SagaEvent::Compensated { .. } => "compensated",
                SagaEvent::Stuck { .. } => "stuck",
                SagaEvent::Superseded { .. } => "superseded",
                SagaEvent::Incompatible { .. } => "incompatible",
                SagaEvent::StoreFailed { .. } => "store_failed",
            });
        });
        let saga = self.clone();
        let running = scope.gauge("steadfast_saga_running", &[]);
        Box::new(move || running.set(saga.running() as f64))
    }
}

impl<T: Send + Sync + 'static> Measured for Scheduler<T> {
    const KIND: &'static str = "scheduler";

    fn measure(&self, scope: &Scope) -> Sample {
        let events = ["resent", "stranded", "dead_lettered", "reply_failed"];
        let [resent, stranded, dead_lettered, reply_failed] =
            scope.counters("steadfast_scheduler_events_total", "event", events);
        self.events().tap(move |event| match event {
            SchedulerEvent::Resent { .. } => resent.increment(1),
            SchedulerEvent::Stranded { .. } => stranded.increment(1),
            SchedulerEvent::DeadLettered { .. } => dead_lettered.increment(1),
            SchedulerEvent::ReplyFailed { .. } => reply_failed.increment(1),
        });
        Box::new(|| ())
    }
}
