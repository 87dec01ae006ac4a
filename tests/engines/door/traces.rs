//! All that is traced while a test runs, of this crate and of its clients.
use std::{
    fmt::Write as _,
    sync::{Arc, Mutex},
};

use tracing_subscriber::layer::SubscriberExt as _;

/// The texts of the events of this thread.
#[derive(Clone, Default)]
pub(crate) struct Traces(Arc<Mutex<String>>);

impl Traces {
    /// Begins to keep them, until the guard is dropped.
    pub(crate) fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let traces = Self::default();
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(traces.clone()));
        (traces, guard)
    }

    /// Returns what was traced since the last time.
    pub(crate) fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Traces {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut line = format!("{} ", event.metadata().level());
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            let _ = write!(line, "{}={value:?} ", field.name());
        });
        self.0.lock().unwrap().push_str(&(line + "\n"));
    }
}
