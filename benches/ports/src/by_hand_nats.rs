//! The same by hand on NATS: one connection, a stream whose subjects are the records, and a work
//! queue with a pull consumer.
//!
//! A record's version is its number in the stream, and a replacement names the number that it
//! expects. A sent message is acknowledged by the server, and the acknowledgement of a received one
//! is answered. The promises of the queue are less than those of the port: an acknowledgement of an
//! earlier delivery removes the message, too, and nobody learns of it. Nothing else of what the
//! ports add: no fences, no scans, no groups, no delays, no errors of attempts, no de-duplication,
//! no time limits, no classified errors.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_nats::{
    Error,
    jetstream::{
        self, Context,
        consumer::{PullConsumer, pull},
        message::PublishMessage,
        stream::{Config, RetentionPolicy, Stream},
    },
};
use futures::{StreamExt as _, future::BoxFuture};

use crate::{BODY, RECORDS, Work, measure::Subject};

struct ByHand {
    work: Work,
    context: Context,
    records: Stream,
    jobs: Stream,
    consumer: PullConsumer,
    versions: Mutex<Vec<Option<u64>>>,
    rows: Vec<String>,
}

pub async fn subject(work: Work, url: &str) -> Arc<dyn Subject> {
    let context = jetstream::new(async_nats::connect(url).await.expect("it connects"));
    let records = Config {
        name: "hand_records".into(),
        subjects: vec!["hand.records.*".into()],
        max_messages_per_subject: 1,
        ..Config::default()
    };
    let records = context.create_stream(records).await.expect("a stream");
    let jobs = Config {
        name: "hand_jobs".into(),
        subjects: vec!["hand.jobs".into()],
        retention: RetentionPolicy::WorkQueue,
        ..Config::default()
    };
    let jobs = context.create_stream(jobs).await.expect("a stream");
    let consumer = pull::Config {
        durable_name: Some("workers".into()),
        ack_wait: Duration::from_secs(60),
        max_ack_pending: 100_000,
        ..pull::Config::default()
    };
    let consumer = jobs.create_consumer(consumer).await.expect("a consumer");
    let rows: Vec<_> = (0..RECORDS).map(|i| format!("hand.records.row-{i:04}")).collect();
    let versions = Mutex::new(vec![None; 64]);
    let by_hand = ByHand { work, context, records, jobs, consumer, versions, rows };
    if !work.is_queue() {
        for row in &by_hand.rows {
            by_hand.put(row, None).await.expect("a row");
        }
    }
    Arc::new(by_hand)
}

impl ByHand {
    async fn put(&self, row: &str, known: Option<u64>) -> Result<u64, Error> {
        let mut message = PublishMessage::build().payload(BODY[..].into());
        if let Some(known) = known {
            message = message.expected_last_subject_sequence(known);
        }
        Ok(self.context.send_publish(row.to_owned(), message).await?.await?.sequence)
    }

    async fn send(&self, n: usize) -> Result<(), Error> {
        let mut stored = Vec::with_capacity(n);
        for _ in 0..n {
            stored.push(self.context.publish("hand.jobs", BODY[..].into()).await?);
        }
        for stored in stored {
            stored.await?;
        }
        Ok(())
    }

    async fn take(&self, n: usize) -> Result<(), Error> {
        let mut taken = self.consumer.fetch().max_messages(n).messages().await?;
        let mut done = Vec::with_capacity(n);
        while let Some(message) = taken.next().await {
            let message = message?;
            assert_eq!(message.payload.len(), BODY.len());
            assert!(message.info()?.delivered > 0);
            done.push(message);
        }
        let acks = futures::future::join_all(done.iter().map(|message| message.double_ack())).await;
        acks.into_iter().collect()
    }

    async fn once(&self, caller: usize, i: usize) -> Result<(), Error> {
        let row = &self.rows[(caller * 61 + i) % RECORDS];
        match self.work {
            Work::Get => {
                let record = self.records.get_last_raw_message_by_subject(row).await?;
                assert_eq!(record.payload.len(), BODY.len());
            }
            Work::Put => drop(self.put(row, None).await?),
            Work::Cas => {
                let known = self.versions.lock().expect("no panic")[caller];
                let version = self.put(&self.rows[caller], known).await?;
                self.versions.lock().expect("no panic")[caller] = Some(version);
            }
            Work::Send(n) => self.send(n).await?,
            Work::Take(n) => self.take(n).await?,
            Work::Append | Work::Forward(_) | Work::Events(_) => unreachable!("NATS has none of them"),
        }
        Ok(())
    }
}

impl Subject for ByHand {
    fn prepare(&self, operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if !self.work.is_queue() {
                return;
            }
            self.jobs.purge().await.expect("a purge");
            if let Work::Take(n) = self.work {
                let mut left = operations * n;
                while left > 0 {
                    let some = left.min(256);
                    self.send(some).await.expect("messages");
                    left -= some;
                }
            }
        })
    }

    fn work(self: Arc<Self>, caller: usize, operations: usize) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for i in 0..operations {
                self.once(caller, i).await.expect("NATS");
            }
        })
    }
}
