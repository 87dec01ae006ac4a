//! The producer: partitions of keys, shared requests, limits, dropped futures.
use std::sync::{Arc, Mutex};

use steadfast::{
    port::{PortError, PortErrorKind, PortFuture},
    store::InMemoryStore,
    stream::{Appended, Event, Producer, ProducerConfig, StoreTopic, Topic, partition_of},
    time::block_on,
};
use tokio::sync::Semaphore;

/// The partition of a request, and the bodies of its events.
type Sent = (u16, Vec<String>);

/// A topic whose appends each need a permit, and are recorded.
#[derive(Debug, Clone)]
struct Gated {
    topic: StoreTopic,
    permits: Arc<Semaphore>,
    requests: Arc<Mutex<Vec<Sent>>>,
    fails: Arc<Mutex<Option<PortError>>>,
}

impl Gated {
    async fn with(partitions: u16, permits: usize) -> Self {
        let topic = StoreTopic::open(Arc::new(InMemoryStore::new()), "t", partitions).await.unwrap();
        Self { topic, permits: Arc::new(Semaphore::new(permits)), requests: Arc::default(), fails: Arc::default() }
    }

    fn sizes(&self) -> Vec<usize> {
        self.requests.lock().unwrap().iter().map(|(_, bodies)| bodies.len()).collect()
    }
}

impl Topic for Gated {
    forward_topic! { topic: constants, read, bounds, trim }

    fn append(&self, partition: u16, events: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        Box::pin(async move {
            let bodies = events.iter().map(|event| String::from_utf8(event.body.to_vec()).unwrap()).collect();
            self.requests.lock().unwrap().push((partition, bodies));
            self.permits.acquire().await.unwrap().forget();
            if let Some(error) = self.fails.lock().unwrap().take() {
                return Err(error);
            }
            self.topic.append(partition, events).await
        })
    }
}

async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn spawn(producer: &Producer, event: Event) -> tokio::task::JoinHandle<Result<Appended, PortError>> {
    let producer = producer.clone();
    tokio::spawn(async move { producer.append(event).await })
}

// Guarantee: stream 18.
#[test]
fn the_partition_of_a_key_is_its_xxh3_modulo_the_number() {
    // Computed by xxhash 0.8.4 of C.
    for (key, hash) in KEYS {
        for partitions in [1, 2, 7, 32, 1000, 1024] {
            assert_eq!(u64::from(partition_of(key, partitions)), hash % u64::from(partitions), "{key:?}");
        }
    }
    assert_eq!(partition_of("any", 0), 0);
}

/// Keys with their XXH3 of 64 bits.
const KEYS: [(&str, u64); 6] = [
    ("", 0x2d06_8005_38d3_94c2),
    ("a", 0xe6c6_32b6_1e96_4e1f),
    ("tenant-7", 0x7433_8c89_b23f_aa0a),
    ("order 42", 0xa920_e3cb_9209_e44b),
    ("日本", 0x2c17_fb83_7f1a_1bc0),
    ("a key that is longer than sixteen bytes", 0x5b31_b4ad_e7cb_f01e),
];

#[tokio::test]
async fn events_without_a_key_are_spread_evenly_and_those_with_one_stay_together() {
    let topic = Gated::with(4, 10_000).await;
    let producer = Producer::new(topic.clone(), ProducerConfig::default()).unwrap();
    let mut counts = [0; 4];
    for _ in 0..40 {
        counts[usize::from(producer.append(Event::new("a")).await.unwrap().position.partition)] += 1;
    }
    assert_eq!(counts, [10; 4]);
    for _ in 0..10 {
        let keyed = producer.append(Event::new("a").key("tenant-7")).await.unwrap();
        assert_eq!(keyed.position.partition, partition_of("tenant-7", 4));
    }
    // An id finds its event again, although it has no key.
    let first = producer.append(Event::new("a").id("request-9")).await.unwrap();
    for _ in 0..10 {
        let again = producer.append(Event::new("a").id("request-9")).await.unwrap();
        assert_eq!((again.position, again.is_duplicate), (first.position, true));
    }
}

// Guarantee: stream 19.
#[tokio::test]
async fn appends_that_meet_share_a_request_of_at_most_max_batch() {
    let topic = Gated::with(1, 0).await;
    let producer = Producer::new(topic.clone(), ProducerConfig::default().max_batch(10)).unwrap();
    let mut tasks = Vec::new();
    for n in 0..36 {
        tasks.push(spawn(&producer, Event::new(n.to_string())));
        settle().await;
    }
    assert_eq!(topic.sizes(), [1], "one request is under way");
    topic.permits.add_permits(100);
    for (task, n) in tasks.into_iter().zip(1..) {
        let appended = task.await.unwrap().unwrap();
        assert_eq!(appended.position.offset, n, "events are in the order of the calls");
    }
    assert_eq!(topic.sizes(), [1, 10, 10, 10, 5]);
    assert_eq!(producer.pending(), 0);
}

#[tokio::test]
async fn a_request_of_large_events_has_fewer() {
    let topic = Gated::with(1, 0).await;
    let producer = Producer::new(topic.clone(), ProducerConfig::default()).unwrap();
    let tasks: Vec<_> = (0..300).map(|_| spawn(&producer, Event::new("x".repeat(64 << 10)))).collect();
    settle().await;
    topic.permits.add_permits(1000);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let most = topic.sizes().into_iter().max().unwrap();
    assert!((20..=40).contains(&most), "{most} events of 64 KiB");
}

// Guarantee: stream 20.
#[tokio::test]
async fn above_max_pending_an_append_is_full_at_once() {
    let topic = Gated::with(2, 0).await;
    let producer = Producer::new(topic.clone(), ProducerConfig::default().max_pending(20)).unwrap();
    let tasks: Vec<_> = (0..20).map(|n| spawn(&producer, Event::new(n.to_string()))).collect();
    settle().await;
    assert_eq!(producer.pending(), 20);
    for _ in 0..3 {
        // Polled once: it does not wait.
        let full = futures::FutureExt::now_or_never(producer.append(Event::new("more"))).unwrap().unwrap_err();
        assert_eq!((full.kind(), full.may_have_been_applied()), (PortErrorKind::Full, false));
    }
    // A dropped future makes room.
    tasks[19].abort();
    settle().await;
    let one_more = spawn(&producer, Event::new("one more"));
    settle().await;
    assert_eq!(producer.pending(), 20);
    topic.permits.add_permits(100);
    for task in tasks.into_iter().take(19).chain([one_more]) {
        task.await.unwrap().unwrap();
    }
    assert_eq!(producer.pending(), 0);
}

// Guarantee: stream 19.
#[tokio::test]
async fn a_dropped_append_disturbs_no_other_one() {
    let topic = Gated::with(1, 0).await;
    let producer = Producer::new(topic.clone(), ProducerConfig::default()).unwrap();
    let tasks: Vec<_> = (0..6).map(|n| spawn(&producer, Event::new(n.to_string()))).collect();
    settle().await;
    // The first is under way, the others wait.
    tasks[0].abort();
    tasks[3].abort();
    settle().await;
    topic.permits.add_permits(100);
    for (n, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.is_err(), n == 0 || n == 3, "{n}");
    }
    // The one under way was appended, the one that waited was not.
    let bodies = &topic.requests.lock().unwrap().iter().flat_map(|(_, bodies)| bodies.clone()).collect::<Vec<_>>();
    assert_eq!(bodies, &["0", "1", "2", "4", "5"]);
    assert_eq!(producer.pending(), 0);
}

#[tokio::test]
async fn an_append_that_is_not_polled_delays_no_other_one() {
    let topic = Gated::with(1, 0).await;
    let producer = Producer::new(topic.clone(), ProducerConfig::default()).unwrap();
    let mut held = Box::pin(producer.append(Event::new("held")));
    assert!(futures::poll!(&mut held).is_pending());
    topic.permits.add_permits(100);
    for n in 0..3 {
        producer.append(Event::new(n.to_string())).await.unwrap();
    }
    assert_eq!(held.await.unwrap().position.offset, 1);
}

#[tokio::test]
async fn a_failure_is_that_of_its_request_alone() {
    let topic = Gated::with(1, 0).await;
    let producer = Producer::new(topic.clone(), ProducerConfig::default()).unwrap();
    let tasks: Vec<_> = (0..4).map(|n| spawn(&producer, Event::new(n.to_string()))).collect();
    settle().await;
    topic.permits.add_permits(1);
    settle().await;
    *topic.fails.lock().unwrap() = Some(PortError::new(PortErrorKind::Unavailable, "away").outcome_unknown());
    topic.permits.add_permits(1);
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap().map(|appended| appended.position.offset).map_err(|error| error.kind()));
    }
    let away = Err(PortErrorKind::Unavailable);
    assert_eq!(results, [Ok(1), away, away, away]);
    topic.permits.add_permits(1);
    assert_eq!(producer.append(Event::new("on")).await.unwrap().position.offset, 2);
}

#[tokio::test]
async fn bad_events_and_settings_are_refused_by_name_and_harm_no_other_event() {
    let topic = Gated::with(1, 100).await;
    let producer = Producer::new(topic.clone(), ProducerConfig::default()).unwrap();
    for (event, field) in [(Event::new("a").key(""), "key"), (Event::new("a").id(""), "id")] {
        let refused = producer.append(event).await.unwrap_err();
        assert!(refused.to_string().starts_with(&format!("invalid `{field}`")), "{refused}");
    }
    assert!(topic.requests.lock().unwrap().is_empty());
    for (config, field) in [
        (ProducerConfig::default().max_batch(0), "max_batch"),
        (ProducerConfig::default().max_batch(100_001), "max_batch"),
        (ProducerConfig::default().max_pending(0), "max_pending"),
    ] {
        assert_eq!(Producer::new(topic.clone(), config).unwrap_err().field(), field);
    }
}

#[test]
fn outside_of_a_runtime_an_append_says_so_unless_it_has_a_spawner() {
    block_on(async {
        let topic = Gated::with(1, 100).await;
        let producer = Producer::new(topic.clone(), ProducerConfig::default()).unwrap();
        let refused = producer.append(Event::new("a")).await.unwrap_err();
        assert_eq!((refused.kind(), refused.may_have_been_applied()), (PortErrorKind::Closed, false));
        let (sender, requests) = std::sync::mpsc::channel();
        let spawner = move |work| sender.send(work).unwrap();
        let producer = Producer::builder(topic.clone(), ProducerConfig::default()).spawner(spawner).build().unwrap();
        let mut append = Box::pin(producer.append(Event::new("a")));
        assert!(futures::poll!(&mut append).is_pending());
        requests.recv().unwrap().await;
        assert_eq!(append.await.unwrap().position.offset, 1);
    });
}
