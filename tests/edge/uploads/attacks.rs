//! Attacks on uploads: inspections that hang or fail, clients that write again, rows that cannot be read.
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    port::PortErrorKind,
    store::Key,
    testing::{PortAnswer, ScriptedPort},
    valet_key::{Declared, Inspection, StoreKind, UploadConfig, UploadError, Uploads},
};

use super::{PDF, S, SCAN, World, scan};

// Guarantee: valet_key 7.
#[test]
fn an_inspection_that_hangs_stops_no_sweep() {
    let world = World::new(StoreKind::Azure);
    let uploads = world.inspecting(|copy| {
        let is_evil = copy.tag() == "evil";
        async move { if is_evil { pending().await } else { Ok(Inspection::Accept) } }
    });
    for n in 0..10 {
        let tag = if n < 9 { "evil" } else { "t7" };
        let ticket = world.time.block_on(uploads.begin(tag, scan())).unwrap();
        world.bucket.upload(&ticket, SCAN).unwrap();
        if n == 9 {
            world.time.block_on(uploads.run(world.clock.sleep(S(7200))));
            assert_eq!(world.bucket.incoming(), 9, "the ones that hang");
            assert_eq!(world.complete(&ticket).unwrap().tag, "t7");
        }
    }
    // Each that hangs ends with its time limit.
    let hung = world.time.block_on(uploads.begin("evil", scan())).unwrap();
    world.bucket.upload(&hung, SCAN).unwrap();
    let ended = world.time.block_on(async {
        tokio::select! {
            biased;
            ended = uploads.complete(&hung.id) => Some(ended),
            () = world.clock.sleep(S(301)) => None,
        }
    });
    assert!(matches!(ended, Some(Err(UploadError::Inspection(_)))), "{ended:?}");
}

// Guarantee: valet_key 7.
#[test]
fn an_outage_of_the_inspection_rejects_nothing_and_leaves_no_copies() {
    let world = World::new(StoreKind::Azure);
    let is_away = Arc::new(AtomicBool::new(true));
    let away = is_away.clone();
    let uploads = world.inspecting(move |_| {
        let is_away = away.load(SeqCst);
        async move { if is_away { Err("away".to_owned()) } else { Ok(Inspection::Accept) } }
    });
    let ticket = world.uploaded(SCAN);
    for _ in 0..101 {
        let failed = world.time.block_on(uploads.complete(&ticket.id)).unwrap_err();
        assert!(matches!(failed, UploadError::Inspection(_)), "{failed}");
        assert_eq!(world.bucket.all().len(), 1, "what the client wrote");
    }
    world.time.block_on(uploads.run(world.clock.sleep(S(4500 + 150 * 60))));
    is_away.store(false, SeqCst);
    world.time.block_on(uploads.run(world.clock.sleep(S(130))));
    assert_eq!(world.complete(&ticket).unwrap().bytes, 15);
    assert_eq!((world.bucket.accepted().len(), world.bucket.incoming()), (1, 0));
}

// Guarantee: valet_key 7.
#[test]
fn an_outage_of_copies_rejects_nothing() {
    let world = World::new(StoreKind::Azure);
    let ticket = world.uploaded(SCAN);
    let gate = ScriptedPort::new(&world.clock);
    gate.by(|call| match call.target.starts_with("copy ") {
        true => PortAnswer::fail(PortErrorKind::Unavailable),
        false => PortAnswer::pass(),
    });
    let away = world.on(&world.bucket.behind(|store| gate.store(store)), world.store.clone());
    for _ in 0..150 {
        let failed = world.time.block_on(away.complete(&ticket.id)).unwrap_err();
        assert_eq!(failed.status(), 503, "{failed}");
    }
    world.time.block_on(away.run(world.clock.sleep(S(20_000))));
    world.sweep_for(S(4000));
    assert_eq!(world.complete(&ticket).unwrap().bytes, 15);
    assert_eq!(world.bucket.all().len(), 1);
}

// Guarantee: valet_key 7.
#[test]
fn nothing_lies_below_accepted_before_its_verdict() {
    let world = World::new(StoreKind::Azure);
    let ticket = world.uploaded(SCAN);
    world.bucket.on_request(|_, bucket| {
        assert!(bucket.all().keys().all(|path| !path.starts_with("accepted/")), "no name tells what is not judged");
    });
    let accepted = world.complete(&ticket).unwrap();
    assert!(accepted.path.starts_with("copies/scans/"), "{}", accepted.path);
}

// Guarantee: valet_key 6.
#[test]
fn clients_that_write_again_after_a_completion_are_bounded() {
    let mut world = World::new(StoreKind::S3);
    world.config = world.config.max_bytes(100).max_outstanding(100);
    let uploads = world.uploads();
    let in_flight = || {
        let all = world.bucket.all().into_iter().filter(|(path, _)| path.starts_with("incoming/"));
        all.map(|(_, body)| body.len()).sum::<usize>()
    };
    let mut begun = 0;
    for _ in 0..20 {
        if let Ok(ticket) = world.time.block_on(uploads.begin("t7", scan())) {
            begun += 1;
            world.bucket.upload(&ticket, SCAN).unwrap();
            world.time.block_on(uploads.complete(&ticket.id)).unwrap();
            world.bucket.upload(&ticket, SCAN).unwrap();
        }
        assert!(in_flight() <= 200);
    }
    assert_eq!(begun, 6, "the bytes are outstanding until no URL writes them");
    world.time.advance(S(900));
    world.sweep_for(S(1));
    assert_eq!(world.bucket.incoming(), 0, "what was written again is deleted with the end of the URL");
    assert!(world.has_room_for(100) && !world.has_room_for(1));
}

// Guarantee: valet_key 7.
#[test]
fn a_grace_in_which_a_request_may_still_run_is_refused() {
    let world = World::new(StoreKind::S3);
    for (grace, is_refused) in [(Duration::from_millis(1), true), (S(59), true), (S(60), false)] {
        let config = UploadConfig::default().grace(grace);
        let built = Uploads::new(Arc::new(world.bucket.clone()), world.store.clone(), "scans", config);
        assert_eq!(built.map_err(|error| error.field().to_owned()).err(), is_refused.then(|| "grace".to_owned()));
    }
}

// Guarantee: valet_key 6.
#[test]
fn a_row_that_cannot_be_read_counts_as_outstanding_and_fails_no_other_upload() {
    let mut world = World::new(StoreKind::S3);
    world.config = world.config.max_bytes(100).max_outstanding(100);
    let ticket = world.begin(Declared::new(PDF, 60));
    let row = format!("scans/open/{}", ticket.id);
    let newer = world.store.put(Key::new("valet-upload", &row), "upload 2\n{}".into(), Default::default());
    world.time.block_on(newer).unwrap();
    world.time.advance(S(900 + 3600 + 1));
    let full = world.time.block_on(world.uploads().begin("t7", Declared::new(PDF, 100))).unwrap_err();
    assert_eq!(full.status(), 429, "{full}");
    assert!(world.has_room_for(40));
}
