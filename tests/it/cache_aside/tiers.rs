//! A remote tier and a backplane whose answers the test decides, request by request.
use std::{
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    notify::{InMemoryNotifier, Notice, NoticeSource, Notices, Notifier},
    port::{BoxFuture, Capabilities, PortErrorKind, PortFuture},
    testing::{PortAnswer, ScriptedPort},
    time::Clock,
};

/// Fails without an effect.
pub(crate) const FAILS: PortAnswer = PortAnswer::fail(PortErrorKind::Unavailable);

/// Returns the correct answer, after this time.
pub(crate) const fn after(time: Duration) -> PortAnswer {
    PortAnswer::pass().request_takes(time)
}

/// Returns the number of calls of this method since the last call, and forgets all.
pub(crate) fn asked(script: &ScriptedPort, method: &str) -> usize {
    let asked = script.calls(method).len();
    script.forget();
    asked
}

/// A backplane that can be set to lose notices and to report a gap.
pub(crate) struct Plane {
    notifier: Arc<dyn Notifier>,
    pub(crate) script: ScriptedPort,
    pub(crate) loses: Arc<AtomicBool>,
    pub(crate) gap: Arc<AtomicBool>,
}

impl Plane {
    pub(crate) fn new(notifier: &Arc<InMemoryNotifier>, clock: &Clock) -> Arc<Self> {
        let script = ScriptedPort::new(clock);
        Arc::new(Self {
            notifier: script.notifier(notifier.clone()),
            script,
            loses: Arc::default(),
            gap: Arc::default(),
        })
    }
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Plane")
    }
}

impl Notifier for Plane {
    fn capabilities(&self) -> Capabilities {
        self.notifier.capabilities()
    }
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        self.notifier.publish(topic, notice)
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async move {
            let notices = self.notifier.subscribe(topic).await?;
            Ok(Notices::new(Heard { notices, loses: self.loses.clone(), gap: self.gap.clone() }))
        })
    }
}

struct Heard {
    notices: Notices,
    loses: Arc<AtomicBool>,
    gap: Arc<AtomicBool>,
}

impl NoticeSource for Heard {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async move {
            loop {
                let next = {
                    let mut next = Box::pin(self.notices.recv());
                    poll_fn(|cx| {
                        if self.gap.swap(false, SeqCst) {
                            return Poll::Ready(Notice::Gap);
                        }
                        next.as_mut().poll(cx)
                    })
                    .await
                };
                if next == Notice::Gap || !self.loses.load(SeqCst) {
                    return next;
                }
            }
        })
    }
}
