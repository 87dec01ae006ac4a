//! Metrics of filters and journals.
use super::super::registry::{Measured, Sample, Scope};
use crate::{
    journal::{Journal, JournalEvent},
    pipes_and_filters::{Filter, FilterEvent},
};

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
