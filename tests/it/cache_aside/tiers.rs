//! A remote tier and a backplane whose answers the test decides, request by request.
use std::{
    future::{Future, pending, poll_fn},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    notify::{InMemoryNotifier, Notice, NoticeSource, Notices, Notifier},
    port::{BoxFuture, Capabilities, PortError, PortErrorKind},
    store::{DeleteOptions, InMemoryStore, Key, Page, PutOptions, Record, Scan, Store, StoreError, Version, Write},
    time::Clock,
};

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The correct answer, after this time.
    After(Duration),
    Never,
    Error,
}

pub(crate) const NOW: Answer = Answer::After(Duration::ZERO);

/// The kind of a request, and its row, or the partition of a scan or batch.
pub(crate) type Request = (&'static str, String);

type Rule = Box<dyn FnMut(&Request) -> Answer + Send>;

/// Answers requests by a rule, and records them.
pub(crate) struct Script {
    clock: Clock,
    rule: Mutex<Rule>,
    requests: Mutex<Vec<Request>>,
}

impl Script {
    fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), rule: Mutex::new(Box::new(|_| NOW)), requests: Mutex::default() }
    }

    pub(crate) fn by(&self, rule: impl FnMut(&Request) -> Answer + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    pub(crate) fn all(&self, answer: Answer) {
        self.by(move |_| answer);
    }

    /// Returns the number of requests of this kind since the last call, and forgets all.
    pub(crate) fn asked(&self, kind: &str) -> usize {
        std::mem::take(&mut *self.requests.lock().unwrap()).iter().filter(|request| request.0 == kind).count()
    }

    async fn answer(&self, kind: &'static str, row: &str) -> Result<(), PortError> {
        let request = (kind, row.to_owned());
        let answer = (self.rule.lock().unwrap())(&request);
        self.requests.lock().unwrap().push(request);
        match answer {
            Answer::After(Duration::ZERO) => Ok(()),
            Answer::After(time) => {
                self.clock.sleep(time).await;
                Ok(())
            }
            Answer::Never => pending().await,
            Answer::Error => Err(PortError::new(PortErrorKind::Unavailable, "not there")),
        }
    }
}

pub(crate) struct Tier {
    store: Arc<InMemoryStore>,
    pub(crate) script: Script,
}

impl Tier {
    pub(crate) fn new(store: &Arc<InMemoryStore>, clock: &Clock) -> Arc<Self> {
        Arc::new(Self { store: store.clone(), script: Script::new(clock) })
    }
}

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tier")
    }
}

impl Store for Tier {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            self.script.answer("get", key.row).await?;
            self.store.get(key).await
        })
    }
    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: Bytes,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(async move {
            self.script.answer("put", key.row).await?;
            self.store.put(key, value, options).await
        })
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            self.script.answer("delete", key.row).await?;
            self.store.delete(key, options).await
        })
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(async move {
            self.script.answer("scan", &scan.partition).await?;
            self.store.scan(scan).await
        })
    }
    fn batch<'a>(
        &'a self,
        partition: &'a str,
        writes: Vec<Write>,
    ) -> BoxFuture<'a, Result<Vec<Option<Version>>, StoreError>> {
        Box::pin(async move {
            self.script.answer("batch", partition).await?;
            self.store.batch(partition, writes).await
        })
    }
}

/// A backplane that can be set to lose notices and to report a gap.
pub(crate) struct Plane {
    notifier: Arc<InMemoryNotifier>,
    pub(crate) script: Script,
    pub(crate) loses: Arc<AtomicBool>,
    pub(crate) gap: Arc<AtomicBool>,
}

impl Plane {
    pub(crate) fn new(notifier: &Arc<InMemoryNotifier>, clock: &Clock) -> Arc<Self> {
        let script = Script::new(clock);
        Arc::new(Self { notifier: notifier.clone(), script, loses: Arc::default(), gap: Arc::default() })
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
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        Box::pin(async move {
            self.script.answer("publish", topic).await?;
            self.notifier.publish(topic, notice).await
        })
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
        Box::pin(async move {
            self.script.answer("subscribe", topic).await?;
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
