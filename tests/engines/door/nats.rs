//! NATS: operator mode, NKeys, domains, several servers, and the rights for one prefix.
use std::time::Duration;

use nkeys::KeyPair;
use steadfast::{
    backend::nats::{Nats, NatsConfig},
    lease::Lease,
    notify::{Notice, Notifier},
    port::PortErrorKind,
    queue::{Message, Queue, QueueExt},
    store::{Key, Precondition, Scan, Store, StoreExt, Write},
};

use super::traces::Traces;
use crate::{
    says,
    server::{self, ends},
};

const KEY: Key<'static> = Key::new("p", "r");

async fn refused(config: NatsConfig) -> steadfast::port::PortError {
    let Err(error) = ends(Nats::connect(config.clone())).await else { panic!("{config:?} was accepted") };
    error
}

/// Uses each port once.
async fn works(nats: &Nats) {
    let (store, queue) = (nats.store(), nats.queue("jobs").await.unwrap());
    store.put(KEY, "x".into(), Precondition::Any.into()).await.unwrap();
    assert_eq!(&store.get(KEY).await.unwrap().unwrap().value[..], b"x");
    assert_eq!(store.scan_all(Scan::partition("p")).await.unwrap().len(), 1);
    assert!(store.delete(KEY, Precondition::Any.into()).await.unwrap());
    queue.send_one(Message::new("a")).await.unwrap();
    let delivery = queue.receive_one(Duration::from_secs(60)).await.unwrap().unwrap();
    queue.complete(&delivery.receipt).await.unwrap();
    assert_eq!(queue.depth().await.unwrap().total(), 0);
    nats.lease().acquire("n", "a", Duration::from_secs(60)).await.unwrap();
    let mut notices = nats.notifier().subscribe("t").await.unwrap();
    nats.notifier().publish("t", "x".into()).await.unwrap();
    assert_eq!(notices.recv().await, Notice::Message("x".into()));
}

fn encoded(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digit = |bits: u32| char::from(DIGITS[(bits & 63) as usize]);
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        text.extend((0..=chunk.len()).map(|at| digit(bits >> (18 - 6 * at))));
    }
    text
}

/// Returns a JWT about `subject`, signed by `issuer`.
fn jwt(issuer: &KeyPair, subject: &KeyPair, name: &str, nats: serde_json::Value) -> String {
    let header = encoded(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let claims = serde_json::json!({
        "jti": name, "iat": 1_700_000_000, "iss": issuer.public_key(), "name": name, "sub": subject.public_key(),
        "nats": nats,
    });
    let signed = format!("{header}.{}", encoded(claims.to_string().as_bytes()));
    let signature = encoded(&issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

/// An operator with one account, and a server that trusts it.
struct Operator {
    account: KeyPair,
    server: server::Nats,
}

impl Operator {
    fn start() -> Self {
        let (operator, system, account) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
        let limits = serde_json::json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
            "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
        });
        let of = |kind: &str, more: serde_json::Value| {
            let mut claims = serde_json::json!({ "type": kind, "version": 2 });
            claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            claims
        };
        let ours = of("account", serde_json::json!({ "limits": limits }));
        let account_jwt = jwt(&operator, &account, "app", ours);
        let no_streams =
            serde_json::json!({ "limits": { "subs": -1, "conn": -1, "leaf": -1, "payload": -1, "data": -1 } });
        let system_jwt = jwt(&operator, &system, "system", of("account", no_streams));
        let operator_jwt = jwt(
            &operator,
            &operator,
            "operator",
            of("operator", serde_json::json!({ "system_account": system.public_key() })),
        );
        let (app, sys) = (account.public_key(), system.public_key());
        let server = server::Nats::with(&format!(
            "operator: {operator_jwt}\nsystem_account: {sys}\nresolver: MEMORY\n\
             resolver_preload {{ {app}: {account_jwt}\n {sys}: {system_jwt} }}\n"
        ));
        Self { account, server }
    }

    /// Returns the text of a credentials file of a new user.
    fn credentials(&self, more: serde_json::Value) -> String {
        let user = KeyPair::new_user();
        let mut claims = serde_json::json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (jwt, seed) = (jwt(&self.account, &user, "user", claims), user.seed().unwrap());
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             ************************* IMPORTANT *************************\n\
             NKEY Seed printed below can be used to sign and prove identity.\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n"
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_operator_mode_is_used_with_credentials() {
    let operator = Operator::start();
    let text = operator.credentials(serde_json::json!({}));
    let config = || NatsConfig::at(operator.server.url());
    let nats = Nats::connect(config().credentials(text.clone())).await.unwrap_or_else(|error| panic!("{error}"));
    works(&nats).await;
    // As a file, which is replaced by one of another user while the handle lives.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("user.creds");
    std::fs::write(&path, &text).unwrap();
    let by_file = Nats::connect(config().credentials(path.to_str().unwrap().to_owned())).await.unwrap();
    std::fs::write(&path, operator.credentials(serde_json::json!({}))).unwrap();
    works(&by_file).await;
    says(&refused(config()).await, PortErrorKind::Denied, &["demands", "`credentials`"]);
    let strangers = Operator::start();
    let foreign = strangers.credentials(serde_json::json!({}));
    says(&refused(config().credentials(foreign)).await, PortErrorKind::Denied, &["refuses the credentials"]);
    // Rights of a JWT are those of a configuration.
    let rights: serde_json::Value =
        serde_json::from_str(&Nats::permissions(&config().prefix("mine"), &["jobs"]).unwrap()).unwrap();
    let limited = operator.credentials(serde_json::json!({
        "pub": { "allow": rights["publish"] }, "sub": { "allow": rights["subscribe"] },
    }));
    let limited = config().credentials(limited).prefix("mine");
    works(&Nats::connect(limited.clone()).await.unwrap_or_else(|error| panic!("{error}"))).await;
    says(&refused(limited.prefix("others")).await, PortErrorKind::Denied, &["_INBOX.others."]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_by_nkey_is_used() {
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let server = server::Nats::with(&format!("authorization {{ users: [{{ nkey: {} }}] }}\n", user.public_key()));
    let config = || NatsConfig::at(server.url());
    works(&Nats::connect(config().nkey(user.seed().unwrap())).await.unwrap_or_else(|error| panic!("{error}"))).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("user.nk");
    std::fs::write(&path, format!("{}\n", user.seed().unwrap())).unwrap();
    works(&Nats::connect(config().nkey(path.to_str().unwrap().to_owned())).await.unwrap()).await;
    says(&refused(config().nkey(stranger.seed().unwrap())).await, PortErrorKind::Denied, &["refuses the NKey"]);
}

/// No secret of an identification is in any text.
#[test]
fn keys_and_credentials_are_never_shown() {
    let (traces, _guard) = Traces::begin();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let operator = Operator::start();
        let text = operator.credentials(serde_json::json!({}));
        let (jwt, seed) = (text.lines().nth(1).unwrap(), text.lines().find(|line| line.starts_with("SU")).unwrap());
        let damaged = text.replace(seed, &seed[..57]);
        let config = || NatsConfig::at(operator.server.url());
        let nats = Nats::connect(config().credentials(text.clone())).await.unwrap();
        let mut texts = vec![format!("{nats:?} {} {:?}", nats.explain(), nats.store())];
        let lone = seed.to_owned();
        for bad in [
            config().credentials(damaged),
            config().credentials(jwt.to_owned()),
            config().credentials(lone.clone()),
            config().credentials(format!("-----BEGIN NATS USER JWT-----\n{jwt}\n")),
            config().credentials(text.clone()).nkey(lone.clone()),
            config().nkey(format!("{seed}X")),
            config().nkey(lone.to_lowercase()),
            config().nkey(lone.clone()),
            NatsConfig::at("nats://u:p@host").nkey(lone.clone()),
        ] {
            let error = refused(bad.clone()).await;
            let is_named = ["credentials", "nkey", "NKey"].iter().any(|name| error.to_string().contains(name));
            assert!(is_named, "{error}");
            texts.push(format!("{error} {error:?} {bad:?}"));
        }
        texts.push(traces.take());
        for shown in texts {
            for secret in [jwt, seed, &seed[8..], &seed.to_lowercase()[8..]] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_may_have_the_user_of_the_first() {
    let login = "authorization { user: app\n password: right }\n";
    let server = server::Nats::with(login);
    let port = server.port();
    for url in [
        format!("nats://app:right@127.0.0.1:1,nats://app:right@127.0.0.1:{port}"),
        format!("nats://app:right@127.0.0.1:1,nats://127.0.0.1:{port}"),
        format!("nats://app:right@127.0.0.1:1,127.0.0.1:{port}"),
    ] {
        works(&Nats::connect(NatsConfig::at(url)).await.unwrap_or_else(|error| panic!("{error}"))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_a_domain_are_reached_by_a_leaf_node() {
    let leaves = server::free_port();
    let folder = tempfile::tempdir().unwrap();
    let store = |name: &str| format!("store_dir: {:?}", folder.path().join(name));
    let hub = server::Nats::with(&format!(
        "jetstream {{ domain: hub\n {} }}\nleafnodes {{ listen: \"127.0.0.1:{leaves}\" }}\n",
        store("hub")
    ));
    let leaf = server::Nats::with(&format!(
        "jetstream {{ domain: leaf\n {} }}\nleafnodes {{ remotes: [{{ url: \"nats://127.0.0.1:{leaves}\" }}] }}\n",
        store("leaf")
    ));
    let config = || NatsConfig::at(leaf.url()).prefix("far").domain("hub".to_owned());
    // The servers tell each other of their streams.
    let nats = ends(async {
        loop {
            match Nats::connect(config()).await {
                Ok(nats) => return nats,
                Err(error) => assert_eq!(error.kind(), PortErrorKind::Unavailable, "{error}"),
            }
            server::look_again().await;
        }
    })
    .await;
    works(&nats).await;
    let names =
        |server: &server::Nats, domain: &str| server.request(&format!("$JS.{domain}.API.STREAM.NAMES"), "").unwrap();
    assert!(names(&hub, "hub").contains("far_store") && !names(&leaf, "leaf").contains("far_store"));
    // A server's own domain needs no name, and takes it.
    works(&Nats::connect(NatsConfig::at(hub.url()).domain("hub".to_owned()).prefix("near")).await.unwrap()).await;
    let nowhere = refused(NatsConfig::at(hub.url()).domain("nowhere".to_owned())).await;
    says(&nowhere, PortErrorKind::Unavailable, &["nowhere"]);
}

/// Starts a server with a user of these rights for the prefix `mine`, and an administrator.
fn limited(rights: &str) -> (server::Nats, NatsConfig) {
    let server = server::Nats::with(&format!(
        "authorization {{ users: [{{ user: app\n password: x\n permissions: {rights} }},\n \
         {{ user: admin\n password: x }}] }}\n"
    ));
    let config = NatsConfig::at(server.url().replace("//", "//app:x@")).prefix("mine");
    (server, config)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_for_a_prefix_are_enough_and_open_no_other() {
    let of_prefix = NatsConfig::at("nats://host").prefix("mine");
    let (_server, config) = limited(&Nats::permissions(&of_prefix, &["jobs"]).unwrap());
    let nats = Nats::connect(config.clone()).await.unwrap_or_else(|error| panic!("{error}"));
    works(&nats).await;
    // Another queue of the prefix, another prefix, and ones that begin alike.
    let error = nats.queue("others").await.unwrap_err();
    says(&error, PortErrorKind::Denied, &["$JS.API.STREAM.INFO.mine_queue_", "Nats::permissions"]);
    for prefix in ["others", "mine2", "mine_queue"] {
        let error = refused(config.clone().prefix(prefix)).await;
        says(&error, PortErrorKind::Denied, &[&format!("`_INBOX.{prefix}.")]);
    }
    // Also if all answers may be heard.
    let hears = Nats::permissions(&of_prefix, &["jobs"]).unwrap().replace("_INBOX.mine.>", "_INBOX.>");
    let (server, config) = limited(&hears);
    for prefix in ["others", "mine2", "mine_queue"] {
        let error = refused(config.clone().prefix(prefix)).await;
        says(&error, PortErrorKind::Denied, &[&format!("`$JS.API.STREAM.INFO.{prefix}_store`")]);
    }
    let admin = NatsConfig::at(server.url().replace("//", "//admin:x@")).prefix("others");
    let admin = Nats::connect(admin).await.unwrap();
    admin.store().insert(KEY, "theirs").await.unwrap();
    assert_eq!(&admin.store().get(KEY).await.unwrap().unwrap().value[..], b"theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_denied_with_its_subject_and_waits_for_no_time_limit() {
    let of_prefix = NatsConfig::at("nats://host").prefix("mine");
    let all = Nats::permissions(&of_prefix, &["jobs"]).unwrap();
    let without = |right: &str| {
        let less = all.replace(&format!("\"{right}\","), "");
        assert_ne!(less, all, "{all}");
        less
    };
    // Longer than any test waits: a refusal that is not told would fail it.
    let patient = |config: NatsConfig| config.request_timeout(Duration::from_secs(3600));
    let (_server, config) = limited(&without("mine.>"));
    let nats = ends(Nats::connect(patient(config))).await.unwrap();
    let error = ends(nats.store().insert(KEY, "x")).await.unwrap_err();
    let error = steadfast::port::Failure::backend(&error).unwrap();
    says(error, PortErrorKind::Denied, &["may not publish to `mine.s.p.v.r.%.r`"]);
    assert!(!steadfast::port::Failure::may_have_been_applied(error));
    // Nobody may hear the answers.
    let (_server, config) = limited(&all.replace("_INBOX.mine.>", "_INBOX.theirs.>"));
    let error = ends(refused(patient(config))).await;
    says(&error, PortErrorKind::Denied, &["may not subscribe to `_INBOX.mine."]);
    // Notices.
    let (_server, config) = limited(&all.replace("mine.n.>", "mine.n.other"));
    let nats = ends(Nats::connect(patient(config))).await.unwrap();
    let error = ends(nats.notifier().subscribe("t")).await.unwrap_err();
    says(&error, PortErrorKind::Denied, &["may not subscribe to `mine.n.t`"]);
    let (_server, config) = limited(&all.replace("\"mine.>\"", "\"mine.s.>\",\"mine.none\""));
    let nats = ends(Nats::connect(patient(config))).await.unwrap();
    let error = ends(nats.notifier().publish("t", "x".into())).await.unwrap_err();
    says(&error, PortErrorKind::Denied, &["may not publish to `mine.n.t`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_nobody_may_hear_is_not_sent_or_its_outcome_is_unknown() {
    let of_prefix = NatsConfig::at("nats://host").prefix("mine");
    let (server, config) = limited(&Nats::permissions(&of_prefix, &["jobs"]).unwrap());
    let store = Nats::connect(config.clone()).await.unwrap().store();
    store.insert(KEY, "before").await.unwrap();
    // The right is taken, and the connection is lost and restored.
    server.shut_down();
    server.change("_INBOX.mine.>", "_INBOX.theirs.>");
    server.start_again();
    let admin = NatsConfig::at(server.url().replace("//", "//admin:x@")).prefix("mine");
    let admin = Nats::connect(admin).await.unwrap().store();
    let mut denied = 0;
    let mut wrong = Vec::new();
    for i in 0.. {
        let value = i.to_string();
        let error = ends(store.put(KEY, value.clone().into(), Precondition::Any.into())).await.unwrap_err();
        let backend = steadfast::port::Failure::backend(&error).unwrap();
        if backend.kind() == PortErrorKind::Denied {
            says(backend, PortErrorKind::Denied, &["may not subscribe to `_INBOX.mine."]);
            denied += 1;
        } else {
            tokio::task::yield_now().await;
        }
        // What was certainly not applied is not there, also after the next one was refused.
        if !steadfast::port::Failure::may_have_been_applied(&error) {
            let found = admin.get(KEY).await.unwrap().unwrap();
            if found.value[..] == *value.as_bytes() {
                wrong.push(value);
            }
        }
        if denied == 5 {
            break;
        }
    }
    assert!(wrong.is_empty(), "stored, and reported as not applied: {wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_missing_rights_at_once_are_denied_each_and_wait_for_no_time_limit() {
    let of_prefix = NatsConfig::at("nats://host").prefix("mine");
    let rights = Nats::permissions(&of_prefix, &["jobs"]).unwrap().replace("\"mine.>\",", "");
    let (_server, config) = limited(&rights);
    let nats = ends(Nats::connect(config.request_timeout(Duration::from_secs(3600)))).await.unwrap();
    let puts = (0..100).map(|i| {
        let store = nats.store();
        async move { store.insert(Key::new("p", &i.to_string()), "x").await.unwrap_err() }
    });
    for error in ends(futures::future::join_all(puts)).await {
        let error = steadfast::port::Failure::backend(&error).unwrap();
        says(error, PortErrorKind::Denied, &["may not publish to `mine.s.p."]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_a_row_that_may_not_be_written_is_denied_and_writes_none() {
    let of_prefix = NatsConfig::at("nats://host").prefix("mine");
    let all = Nats::permissions(&of_prefix, &["jobs"]).unwrap();
    let (_server, config) = limited(&all.replace("\"mine.>\"", "\"mine.s.p.v.q.>\",\"mine.none\""));
    let nats = ends(Nats::connect(config.request_timeout(Duration::from_secs(3600)))).await.unwrap();
    let put = |row: &str| Write::put(row, "x", Precondition::Any);
    let error = ends(nats.store().batch("p", vec![put("r"), put("q")])).await.unwrap_err();
    let error = steadfast::port::Failure::backend(&error).unwrap();
    says(error, PortErrorKind::Denied, &["may not publish to `mine.s.p.v.r.%.r`"]);
    assert!(nats.store().get(Key::new("p", "q")).await.unwrap().is_none());
    nats.store().batch("p", vec![put("q"), put("q2")]).await.unwrap();
}
