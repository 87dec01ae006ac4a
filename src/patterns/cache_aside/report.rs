//! The clock, the counters and the events that all parts of a cache use.
use std::time::Duration;

use super::{CacheAsideEvent as Event, RemoteCall, remote::record::ReadError, stats::Stats, stats::count};
use crate::{
    config::Name,
    observe::Events,
    port::PortErrorKind,
    time::{Clock, Instant, Sleep},
};

pub(super) struct Report {
    pub(super) clock: Clock,
    pub(super) stats: Stats,
    pub(super) events: Events<Event>,
    pub(super) name: Option<Name>,
}

impl Report {
    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn sleep(&self, d: Duration) -> Sleep {
        self.clock.sleep(d)
    }

    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        if self.events.wanted() {
            self.events.send(self.name.as_ref(), self.now(), event);
        }
    }

    pub(super) fn remote_failed(&self, call: RemoteCall, kind: Option<PortErrorKind>) {
        count(&self.stats.faults);
        self.event(|| Event::RemoteFailed { call, kind });
    }

    pub(super) fn undecodable(&self) {
        self.read_error(ReadError::Form);
    }

    pub(super) fn read_error(&self, why: ReadError) {
        count(&self.stats.faults);
        self.event(|| match why {
            ReadError::Form => Event::Undecodable,
            ReadError::Damaged => Event::Damaged,
        });
    }

    pub(super) fn not_storable(&self) {
        count(&self.stats.faults);
        self.event(|| Event::NotStorable);
    }
}
