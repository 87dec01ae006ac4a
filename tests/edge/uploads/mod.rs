//! Uploads to an object store: their beginning, their completion, and sweeps.
mod attacks;
mod bucket;
mod crashes;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    entropy::Entropy,
    observe::Subscription,
    port::{Capability, PortErrorKind},
    store::{InMemoryStore, Key, Store, StoreExt},
    testing::{ManualClock, PortAnswer, ScriptedPort},
    time::{Clock, Timestamp},
    valet_key::{
        Accepted, Candidate, Declared, Inspection, RejectReason, StoreKind, Ticket, UploadConfig, UploadError,
        UploadEvent as Event, Uploads,
    },
};

use self::bucket::{Bucket, SCAM, SCAN, SCAN_BASE64, SCAN_SHA256};

const S: fn(u64) -> Duration = Duration::from_secs;
const PDF: &str = "application/pdf";

pub(crate) struct World {
    time: ManualClock,
    clock: Clock,
    port: ScriptedPort,
    store: Arc<dyn Store>,
    bucket: Bucket,
    config: UploadConfig,
}

impl World {
    fn new(kind: StoreKind) -> Self {
        let (clock, time) = Clock::manual();
        time.set_wall(Timestamp::from_millis(1_800_000_000_000));
        // A store in memory that claims to be one on disk.
        let port = ScriptedPort::changing(&clock, |can| can.with(Capability::Durable));
        let store = port.store(Arc::new(InMemoryStore::builder().clock(&clock).build()));
        let bucket = Bucket::new(&clock);
        Self { time, port, store, bucket, clock, config: UploadConfig::default().kind(kind) }
    }

    fn on(&self, bucket: &Bucket, store: Arc<dyn Store>) -> Uploads {
        let builder = Uploads::builder(Arc::new(bucket.clone()), store, "scans", self.config);
        builder.clock(&self.clock).entropy(&Entropy::from_seed(1)).build().unwrap()
    }

    fn uploads(&self) -> Uploads {
        self.on(&self.bucket, self.store.clone())
    }

    fn inspecting<F>(&self, inspect: impl Fn(Candidate) -> F + Send + Sync + 'static) -> Uploads
    where
        F: Future<Output = Result<Inspection, String>> + Send + 'static,
    {
        let builder = Uploads::builder(Arc::new(self.bucket.clone()), self.store.clone(), "scans", self.config);
        builder.clock(&self.clock).inspect(inspect).build().unwrap()
    }

    fn begin(&self, declared: Declared) -> Ticket {
        self.time.block_on(self.uploads().begin("t7", declared)).unwrap()
    }

    /// Begins an upload of the scan, and uploads this.
    fn uploaded(&self, body: &'static [u8]) -> Ticket {
        let ticket = self.begin(scan());
        self.bucket.upload(&ticket, body).unwrap();
        ticket
    }

    fn complete(&self, ticket: &Ticket) -> Result<Accepted, UploadError> {
        self.time.block_on(self.uploads().complete(&ticket.id))
    }

    fn sweep_for(&self, time: Duration) {
        self.time.block_on(self.uploads().run(self.clock.sleep(time)));
    }

    /// The bytes that are outstanding for the tag, found by what still fits.
    fn has_room_for(&self, bytes: u64) -> bool {
        self.time.block_on(self.uploads().begin("t7", Declared::new(PDF, bytes))).is_ok()
    }

    fn rows(&self) -> Vec<String> {
        let scan = steadfast::store::Scan::partition("valet-upload");
        let rows = self.time.block_on(self.store.scan_all(scan)).unwrap();
        rows.into_iter().map(|row| row.row).collect()
    }
}

fn scan() -> Declared {
    Declared::new(PDF, SCAN.len() as u64)
}

fn told(events: &mut Subscription<Event>) -> Vec<Event> {
    std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect()
}

fn rejected(result: Result<Accepted, UploadError>) -> RejectReason {
    match result {
        Err(UploadError::Rejected { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

// Guarantee: valet_key 6.
#[test]
fn an_upload_url_writes_one_random_name_and_binds_what_its_store_can_bind() {
    let world = World::new(StoreKind::S3);
    let (one, two) = (world.begin(scan().sha256(SCAN_SHA256)), world.begin(scan()));
    let path = world.bucket.path(&one);
    assert!(path.starts_with("incoming/scans/") && path.len() == "incoming/scans/".len() + 22, "{path}");
    assert_ne!(path, world.bucket.path(&two));
    assert_eq!(world.bucket.bound(&one), ["content-type", "if-none-match", "x-amz-checksum-sha256"]);
    assert_eq!(world.bucket.bound(&two), ["content-type", "if-none-match"]);
    assert!(one.headers.contains(&("x-amz-checksum-sha256", SCAN_BASE64.to_owned())));
    assert_eq!(one.expires_at.as_millis(), world.clock.wall().as_millis() + 900_000);
    // Each header that is missing or has another value.
    for left_out in 0..one.headers.len() {
        let mut headers = one.headers.clone();
        headers[left_out].1.push('x');
        assert_eq!(world.bucket.upload_with(&one, &headers, SCAN), Err("signature"), "{headers:?}");
        headers.remove(left_out);
        assert_eq!(world.bucket.upload_with(&one, &headers, SCAN), Err("signature"), "{headers:?}");
    }
    assert_eq!(world.bucket.upload(&one, SCAM), Err("checksum"));
    world.bucket.upload(&one, SCAN).unwrap();
    assert_eq!(world.bucket.upload(&one, SCAN), Err("exists"));
    world.time.advance(S(900));
    assert_eq!(world.bucket.upload(&two, SCAN), Err("expired"));

    let world = World::new(StoreKind::Gcs);
    let ticket = world.begin(scan().sha256(SCAN_SHA256));
    let bound = ["content-type", "x-goog-content-length-range", "x-goog-if-generation-match"];
    assert_eq!(world.bucket.bound(&ticket), bound);
    assert_eq!(world.bucket.upload(&ticket, b"short"), Err("length"));
    let world = World::new(StoreKind::Azure);
    let ticket = world.begin(scan().sha256(SCAN_SHA256));
    assert!(world.bucket.bound(&ticket).is_empty());
    assert_eq!(ticket.headers, [("content-type", PDF.to_owned()), ("x-ms-blob-type", "BlockBlob".to_owned())]);
    let warnings = world.uploads().explain().warnings().join("\n");
    assert!(warnings.contains("does not bind length, type and digest"), "{warnings}");
    let text = format!("{ticket:?}");
    assert!(text.contains(&ticket.id) && !text.contains("signature"), "{text}");
}

// Guarantee: valet_key 6.
#[test]
fn outstanding_bytes_of_a_tag_are_limited_over_all_processes() {
    let mut world = World::new(StoreKind::S3);
    world.config = world.config.max_bytes(100).max_outstanding(1000);
    let processes: Vec<_> = (0..4).map(|_| world.uploads()).collect();
    let mut events = processes[0].events();
    // Requests overlap: each takes some time.
    world.port.by(|call| PortAnswer::pass().request_takes(Duration::from_millis(call.number as u64 % 7)));
    let calls = (0..60).map(|n| processes[n % 4].begin("t7", Declared::new(PDF, 100)));
    let begun = world.time.block_on(futures::future::join_all(calls));
    assert_eq!(begun.iter().filter(|begun| begun.is_ok()).count(), 10);
    let refused = begun.iter().find_map(|begun| begun.as_ref().err()).unwrap();
    assert_eq!(refused.status(), 429, "{refused}");
    let wait = refused.retry_after().unwrap();
    assert!(wait > S(4490) && wait <= S(4500), "{wait:?}: the end of a URL and its grace");
    assert!(told(&mut events).iter().any(|event| matches!(event, Event::Limited { bytes: 100, .. })));
    assert!(!world.has_room_for(1), "no upload is refused and counted");
    assert!(world.time.block_on(world.uploads().begin("t8", Declared::new(PDF, 100))).is_ok(), "another tag");
    // The bytes return with the end of an upload, accepted or not.
    let ticket = begun.iter().flatten().next().unwrap();
    world.bucket.upload(ticket, SCAN).unwrap();
    assert_eq!(rejected(world.complete(ticket)), RejectReason::Size);
    assert!(!world.has_room_for(1), "its URL may write again");
    world.time.advance(S(900));
    world.sweep_for(S(1));
    assert!(world.has_room_for(100) && !world.has_room_for(1));
    // After the time to return a sweep has ended those that nobody reported.
    world.time.advance(wait);
    world.sweep_for(S(1));
    assert!((0..10).all(|_| world.has_room_for(100)) && !world.has_room_for(1));
    assert!(matches!(
        world.time.block_on(world.uploads().begin("t7", Declared::new(PDF, 101))),
        Err(UploadError::TooLarge { max: 100 })
    ));
}

/// Regression of a thought: a process that is paused between the upload and its bytes.
// Guarantee: valet_key 6.
#[test]
fn bytes_of_an_upload_that_ended_before_they_were_counted_are_found_again() {
    let mut world = World::new(StoreKind::S3);
    world.config = world.config.max_bytes(100).max_outstanding(100);
    let paused = world.uploads();
    world.port.by(|call| match call.target.contains("/tag/") && call.method == "put" && call.number == 2 {
        true => PortAnswer::pass().held(),
        false => PortAnswer::pass(),
    });
    let sweeps = world.uploads();
    let begun = world.time.block_on(async {
        let sleeping = async {
            // Longer than the upload may be outstanding. The time limits of a process that is paused
            // wait with it.
            let paused_for = |seconds| world.time.set_wall(world.clock.wall() + S(seconds));
            paused_for(5_000);
            sweeps.run(world.clock.sleep(S(10))).await;
            paused_for(5_000);
            sweeps.run(world.clock.sleep(S(10))).await;
            world.port.release();
        };
        futures::join!(paused.begin("t7", Declared::new(PDF, 100)), sleeping).0
    });
    assert!(begun.unwrap().expires_at < world.clock.wall());
    assert!(world.has_room_for(100));
}

// Guarantee: valet_key 6.
#[test]
fn uploads_refuse_settings_and_declarations_that_promise_too_much() {
    let world = World::new(StoreKind::S3);
    let config = UploadConfig::default();
    let build = |name: &str, store: Arc<dyn Store>, config| {
        Uploads::new(Arc::new(world.bucket.clone()), store, name, config)
            .map(|_| ())
            .map_err(|error| error.field().to_owned())
    };
    for (config, field) in [
        (config.url_lifetime(S(3601)), "url_lifetime"),
        (config.url_lifetime(S(604_801)).credentials_lifetime(S(1_000_000)), "url_lifetime"),
        (config.url_lifetime(S(0)), "url_lifetime"),
        (config.max_bytes(0), "max_bytes"),
        (config.max_bytes((5 << 30) + 1), "max_bytes"),
        (config.max_outstanding(1000), "max_outstanding"),
        (config.grace(S(0)), "grace"),
        (config.grace(S(59)), "grace"),
        (config.inspect_timeout(S(0)), "inspect_timeout"),
        (config.keep_results(S(0)), "keep_results"),
        (config.sweep_interval(S(0)), "sweep_interval"),
        (config.call_timeout(S(0)), "call_timeout"),
    ] {
        assert_eq!(build("scans", world.store.clone(), config), Err(field.to_owned()));
    }
    assert!(build("scans", world.store.clone(), config.url_lifetime(S(7200)).credentials_lifetime(S(7200))).is_ok());
    for name in ["", "a/b"] {
        assert_eq!(build(name, world.store.clone(), config), Err("name".to_owned()));
    }
    let volatile = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
    assert_eq!(build("scans", volatile, config), Err("store".to_owned()), "not durable");
    for (tag, declared) in [
        ("", scan()),
        ("t7", Declared::new("", 1)),
        ("t7", Declared::new("text/plain\r\nx-evil: 1", 1)),
        ("t7", Declared::new(" text/plain", 1)),
        ("t7", Declared::new("x".repeat(256), 1)),
    ] {
        let refused = world.time.block_on(world.uploads().begin(tag, declared)).unwrap_err();
        assert_eq!(refused.status(), 400, "{refused}");
    }
    assert!(world.rows().is_empty());
}

// Guarantee: valet_key 7.
#[test]
fn a_completed_upload_is_accepted_once_and_stays_what_it_was() {
    let world = World::new(StoreKind::S3);
    let uploads = world.uploads();
    let mut events = uploads.events();
    let ticket = world.time.block_on(uploads.begin("t7", scan().sha256(SCAN_SHA256))).unwrap();
    assert!(matches!(world.complete(&ticket), Err(UploadError::NotUploaded)));
    world.bucket.upload(&ticket, SCAN).unwrap();
    let accepted = world.time.block_on(uploads.complete(&ticket.id)).unwrap();
    assert_eq!((accepted.bytes, accepted.sha256, accepted.tag.as_str()), (15, SCAN_SHA256, "t7"));
    assert_eq!(world.bucket.accepted(), [(accepted.path.clone(), SCAN.to_vec())]);
    assert_eq!(world.bucket.incoming(), 0);
    // The URL is still valid.
    world.bucket.upload(&ticket, SCAN).unwrap();
    assert_eq!(world.complete(&ticket).unwrap(), accepted);
    assert_eq!(world.bucket.accepted(), [(accepted.path.clone(), SCAN.to_vec())]);
    let told = told(&mut events);
    let [Event::Begun { .. }, Event::Accepted { id, path, bytes: 15, .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!((id.as_str(), path.as_str()), (&*ticket.id, &*accepted.path));
    // What came late is deleted, and the result stays for a while.
    world.time.advance(S(900 + 3600 + 1));
    world.sweep_for(S(1));
    assert_eq!(world.bucket.all().len(), 1);
    assert_eq!(world.rows().len(), 1, "the result alone: {:?}", world.rows());
    assert_eq!(world.complete(&ticket).unwrap(), accepted);
    world.time.advance(S(7 * 86_400 + 1));
    for id in [&*ticket.id, "", "../x", "AAAAAAAAAAAAAAAAAAAAAA"] {
        assert!(matches!(world.time.block_on(uploads.complete(id)), Err(UploadError::Unknown)), "{id}");
    }
}

// Guarantee: valet_key 7.
#[test]
fn of_clients_that_lie_nothing_is_accepted() {
    for (kind, declared, headers, body, expected) in [
        (StoreKind::S3, Declared::new(PDF, 14), None, SCAN, RejectReason::Size),
        (StoreKind::S3, Declared::new(PDF, 16), None, SCAN, RejectReason::Size),
        (StoreKind::Azure, scan().sha256(SCAN_SHA256), None, SCAM, RejectReason::Digest),
        (StoreKind::Gcs, scan().sha256(SCAN_SHA256), None, SCAM, RejectReason::Digest),
        (
            StoreKind::Azure,
            scan(),
            Some(vec![("content-type", "text/html".to_owned())]),
            SCAN,
            RejectReason::ContentType,
        ),
        (StoreKind::Azure, scan(), Some(vec![]), SCAN, RejectReason::ContentType),
    ] {
        let world = World::new(kind);
        let ticket = world.begin(declared);
        let headers = headers.unwrap_or_else(|| ticket.headers.clone());
        world.bucket.upload_with(&ticket, &headers, body).unwrap();
        assert_eq!(rejected(world.complete(&ticket)), expected);
        assert!(world.bucket.all().is_empty(), "{expected:?}");
        // For ever: a second try with the right bytes changes nothing.
        world.bucket.upload(&ticket, SCAN).unwrap();
        assert_eq!(rejected(world.complete(&ticket)), expected);
        world.time.advance(S(900 + 3600 + 1));
        world.sweep_for(S(1));
        assert!(world.bucket.all().is_empty(), "{expected:?}");
    }
}

// Guarantee: valet_key 7.
#[test]
fn a_client_that_writes_again_during_a_completion_changes_nothing_that_was_checked() {
    // After each request of a completion the client replaces its object.
    for at in 0..5 {
        let world = World::new(StoreKind::Azure);
        let ticket = world.begin(scan().sha256(SCAN_SHA256));
        world.bucket.upload(&ticket, SCAN).unwrap();
        let (again, mut request) = (ticket.clone(), 0);
        world.bucket.on_request(move |_, bucket| {
            if request == at {
                bucket.upload(&again, SCAM).unwrap();
            }
            request += 1;
        });
        match world.complete(&ticket) {
            Ok(accepted) => assert_eq!(world.bucket.accepted(), [(accepted.path, SCAN.to_vec())]),
            Err(error) => {
                assert_eq!(rejected(Err(error)), RejectReason::Digest);
                assert!(world.bucket.accepted().is_empty());
            }
        }
    }
}

// Guarantee: valet_key 7.
#[test]
fn an_inspection_sees_the_copy_and_decides() {
    let world = World::new(StoreKind::Azure);
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, bucket) = (calls.clone(), world.bucket.clone());
    let uploads = world.inspecting(move |copy| {
        let (call, bucket) = (counted.fetch_add(1, SeqCst), bucket.clone());
        async move {
            assert!(
                copy.path().starts_with("copies/")
                    && (copy.bytes(), copy.content_type(), copy.tag()) == (15, PDF, "t7")
            );
            assert!(bucket.incoming() == 1, "nothing was deleted before the result");
            match (call, &*copy.read().await.unwrap()) {
                (0, _) => Err("the scanner is away".to_owned()),
                (1, _) => panic!("a bug"),
                (_, SCAN) => Ok(Inspection::Accept),
                (_, _) => Ok(Inspection::Reject("a scam: ".to_owned() + &"x".repeat(1000))),
            }
        }
    });
    let (good, bad) = (world.uploaded(SCAN), world.uploaded(SCAM));
    let complete = |ticket: &Ticket| world.time.block_on(uploads.complete(&ticket.id));
    let bad_path = world.bucket.path(&bad);
    world.time.block_on(object_store::ObjectStoreExt::delete(&world.bucket, &bad_path.into())).unwrap();
    for expected in ["the scanner is away", "a bug"] {
        let failed = complete(&good).unwrap_err();
        assert!(failed.to_string().contains(expected) && failed.status() == 500, "{failed}");
    }
    let accepted = complete(&good).unwrap();
    assert_eq!(world.bucket.accepted(), [(accepted.path, SCAN.to_vec())], "copies of failed attempts are deleted");
    world.bucket.upload(&bad, SCAM).unwrap();
    let Err(UploadError::Rejected { reason: RejectReason::Inspection, detail }) = complete(&bad) else { panic!() };
    assert!(detail.starts_with("a scam: ") && detail.len() == 256);
    assert_eq!((world.bucket.all().len(), calls.load(SeqCst)), (1, 4));
}

// Guarantee: valet_key 7.
#[test]
fn a_sweep_completes_what_nobody_reports_and_ends_what_nobody_uploads() {
    let world = World::new(StoreKind::S3);
    let (silent, never) = (world.uploaded(SCAN), world.begin(scan()));
    let damaged = Key::new("valet-upload", "scans/open/damaged");
    world.time.block_on(world.store.put(damaged, "upload 2\n{}".into(), Default::default())).unwrap();
    let uploads = world.uploads();
    let mut events = uploads.events();
    world.sweep_for(S(900 + 3500));
    assert_eq!((world.bucket.incoming(), world.bucket.accepted().len()), (1, 0), "they may still run");
    world.time.block_on(uploads.run(world.clock.sleep(S(200))));
    assert_eq!((world.bucket.incoming(), world.bucket.accepted().len()), (0, 1));
    let told = told(&mut events);
    assert!(told.iter().any(|event| matches!(event, Event::Accepted { .. })), "{told:?}");
    assert!(
        told.iter().any(|event| matches!(event, Event::Rejected { reason: RejectReason::Missing, .. })),
        "{told:?}"
    );
    assert!(told.contains(&Event::SweepFailed { id: Some("damaged".into()) }), "{told:?}");
    assert_eq!(world.complete(&silent).unwrap().bytes, 15);
    assert_eq!(rejected(world.complete(&never)), RejectReason::Missing);
    world.sweep_for(S(3700));
    assert_eq!(world.rows().iter().filter(|row| row.contains("/open/")).count(), 1, "the damaged one");
    assert_eq!(world.bucket.all().len(), 1);
    // A store that is away ends no sweeper.
    world.port.by(|_| PortAnswer::fail(PortErrorKind::Unavailable));
    world.time.block_on(uploads.run(world.clock.sleep(S(200))));
    assert!(self::told(&mut events).contains(&Event::SweepFailed { id: None }));
    let away = world.complete(&silent).unwrap_err();
    assert_eq!((away.status(), away.retry_after()), (503, Some(S(1))), "{away}");
}

#[test]
fn metrics_of_uploads_count_what_their_events_tell() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let world = World::new(StoreKind::S3);
    let metrics = steadfast::metrics::Metrics::builder().recorder(recorder).clock(&world.clock).build();
    let uploads = world.uploads();
    metrics.watch("u", &uploads).unwrap();
    for (declared, body) in [(scan(), SCAN), (Declared::new(PDF, 1), SCAN)] {
        let ticket = world.time.block_on(uploads.begin("t7", declared)).unwrap();
        world.bucket.upload(&ticket, body).unwrap();
        let _ = world.time.block_on(uploads.complete(&ticket.id));
    }
    let text = page.render();
    for (series, value) in [
        ("steadfast_uploads_events_total{name=\"u\",event=\"begun\"}", "2"),
        ("steadfast_uploads_events_total{name=\"u\",event=\"accepted\"}", "1"),
        ("steadfast_uploads_rejected_total{name=\"u\",reason=\"size\"}", "1"),
        ("steadfast_uploads_bytes_total{name=\"u\"}", "15"),
    ] {
        assert!(text.contains(&format!("{series} {value}\n")), "{series} {value}: {text}");
    }
    // The table has these series, and no other ones of them.
    let names = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next());
    let registered: std::collections::BTreeSet<_> = names.filter(|name| !name.is_empty()).collect();
    let table = steadfast::metrics::series().map(|series| series.name);
    assert_eq!(registered, table.filter(|name| name.starts_with("steadfast_uploads_")).collect());
}
