//! Users with few rights: the least that the page states, and each right that is missing.
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    backend::{
        ConnectionEvent,
        redis::{Redis, RedisConfig},
    },
    lease::Lease,
    notify::Notifier,
    port::{Capability, PortErrorKind},
    queue::{Message, Queue, Receive},
    store::{Store, StoreExt},
    testing::conformance::Fixture,
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tracing_subscriber::layer::SubscriberExt as _;

use super::{connect, prefix, run};
use crate::server;

/// The rights that the page states, beside those to keys and channels.
pub(super) const RIGHTS: [&str; 8] =
    ["-@all", "+@read", "+@write", "+@scripting", "+@pubsub", "+@connection", "+info", "+time"];

/// Sets the rights of a user, and returns settings to connect as this user.
pub(super) fn user(server: &server::Redis, name: &str, rights: &[&str]) -> RedisConfig {
    let set = [&["ACL", "SETUSER", name, "reset", "resetchannels", "on", ">secret"][..], rights].concat();
    assert_eq!(server.command(&set), "OK");
    RedisConfig::at(server.url().replace("//", &format!("//{name}:secret@")))
}

/// Returns settings to connect as a user with the least rights to this prefix.
fn least(server: &server::Redis, prefix: &str) -> RedisConfig {
    let (keys, channels) = (format!("~{prefix}:*"), format!("&{prefix}:*"));
    user(server, prefix, &[&[&*keys, &*channels][..], &RIGHTS].concat()).prefix(prefix)
}

/// The suites as that user.
mod suites {
    use super::*;

    async fn fixture<P: ?Sized + 'static>(port: impl Fn(&Redis) -> Arc<P>) -> Fixture<P> {
        let config = least(server::Redis::shared(), &prefix());
        let one = Redis::connect(config.clone()).await.unwrap();
        let other = Redis::connect(config).await.unwrap();
        Fixture::new(port(&one)).with_second_handle(port(&other))
    }

    mod store {
        use super::*;
        steadfast::store_conformance!(async || fixture(|redis| -> Arc<dyn Store> { Arc::new(redis.store()) }).await);
    }

    mod lease {
        use super::*;
        steadfast::lease_conformance!(async || fixture(|redis| -> Arc<dyn Lease> { Arc::new(redis.lease()) }).await);
    }

    mod notifier {
        use super::*;
        steadfast::notifier_conformance!(async || {
            fixture(|redis| -> Arc<dyn Notifier> { Arc::new(redis.notifier()) }).await
        });
    }

    mod queue {
        use super::*;
        steadfast::queue_conformance!(async || {
            let config = least(server::Redis::shared(), &prefix());
            let one = Redis::connect(config.clone()).await.unwrap();
            let other = Redis::connect(config).await.unwrap();
            let queue = |redis: &Redis, name: &str| -> Arc<dyn Queue> { Arc::new(redis.queue(name).unwrap()) };
            let fixture = Fixture::new(queue(&one, "jobs")).with_second_handle(queue(&other, "jobs"));
            fixture.with_neighbour(queue(&one, "others"))
        });
    }
}

/// The default of Redis 7 for a new user is no channel at all.
#[test]
fn a_user_without_channels_is_refused_with_the_rule_to_add() {
    run(async {
        let server = server::Redis::start();
        let without: [(&[&str], &str); 3] =
            [(&["resetchannels"], "&t:*"), (&["&other:*"], "&t:*"), (&["&*", "-publish"], "+@pubsub")];
        for (rights, rule) in without {
            let rights = [&["~*", "+@all"], rights].concat();
            let error = Redis::connect(user(&server, "app", &rights).prefix("t")).await.unwrap_err();
            assert_eq!(error.kind(), PortErrorKind::Denied, "{error}");
            let text = error.to_string();
            assert!(text.contains(rule) && text.contains("`app`") && text.contains("ACL SETUSER"), "{text}");
            assert!(!error.may_have_been_applied() && !text.contains("secret"), "{text}");
        }
    });
}

/// The right is taken while the handle is used: its messages reach the queue as before.
#[test]
fn a_send_whose_publish_is_refused_is_accepted() {
    run(async {
        let server = server::Redis::start();
        let waits = connect(server.url(), "t").await.queue("jobs").unwrap();
        let sends = Redis::connect(user(&server, "app", &["~*", "&*", "+@all"]).prefix("t")).await.unwrap();
        let queue = sends.queue("jobs").unwrap();
        queue.send(vec![Message::new("warm")]).await.unwrap();
        waits.receive(Receive::new(1, Duration::from_secs(60))).await.unwrap();
        let waiting = waits.clone();
        let receive = Receive::new(1, Duration::from_secs(60)).wait(Duration::from_secs(60));
        let waiting = tokio::spawn(async move { waiting.receive(receive).await.unwrap() });
        server::wait_until("the receiver waits", || server.command(&["EXISTS", "t:q:{jobs}:q:w"]) == "1");
        server.command(&["ACL", "SETUSER", "app", "resetchannels"]);
        queue.send(vec![Message::new("sent")]).await.unwrap();
        assert_eq!(queue.depth().await.unwrap().total(), 2);
        waiting.abort();
        // So it stays with the next connection.
        let mut events = sends.events();
        server.cut();
        server::ends(async {
            while queue.send(vec![Message::new("after")]).await.is_err() {
                server::look_again().await;
            }
        })
        .await;
        assert!(matches!(events.recv().await.unwrap().what, ConnectionEvent::Lost { .. }));
    });
}

/// A server with too many clients answers the login, too.
#[test]
fn a_refusal_of_the_login_for_another_reason_than_the_password_is_no_denial() {
    run(async {
        for login in ["app:secret@", ":secret@", ""] {
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(async move {
                while let Ok((mut client, _)) = listener.accept().await {
                    let mut request = [0; 1024];
                    let _ = client.read(&mut request).await;
                    let _ = client.write_all(b"-ERR max number of clients reached\r\n").await;
                }
            });
            let config = RedisConfig::at(format!("redis://{login}127.0.0.1:{port}"));
            let error = server::ends(Redis::connect(config)).await.unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret"), "{text}");
            if !login.is_empty() {
                assert_eq!(error.kind(), PortErrorKind::Unavailable, "{error}");
                assert!(text.contains("max number of clients reached"), "{text}");
            }
        }
    });
}

/// The password is an argument of the command with which a connection for subscriptions begins.
#[test]
fn a_server_that_repeats_the_login_in_its_refusal_does_not_show_the_password() {
    run(async {
        let server = server::Redis::with(&["--rename-command", "HELLO", ""]);
        for login in ["app:secret@", "app:secret-with-more@"] {
            server.command(&[
                "ACL",
                "SETUSER",
                "app",
                "reset",
                "on",
                ">secret",
                ">secret-with-more",
                "~*",
                "&*",
                "+@all",
            ]);
            let redis = connect(server.url().replace("//", &format!("//{login}")), &prefix()).await;
            let Err(error) = redis.notifier().subscribe("t").await else { panic!("it has no `HELLO`") };
            let text = format!("{error} {error:?}");
            assert!(text.contains("HELLO") && !text.contains("secret"), "{text}");
        }
    });
}

/// The events that `tracing` receives, as text.
#[derive(Debug, Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Told {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

/// Managed servers give no `CONFIG`.
#[test]
fn a_server_without_config_is_used_and_states_nothing_that_it_does_not_tell() {
    run(async {
        let durable = ["--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no"];
        let renamed = server::Redis::with(&[&durable[..], &["--rename-command", "CONFIG", ""]].concat());
        let denying = server::Redis::durable();
        let configs = [RedisConfig::at(renamed.url()), user(&denying, "app", &["~*", "&*", "+@all", "-config"])];
        for config in configs {
            let told = Told::default();
            let subscriber = tracing_subscriber::registry().with(told.clone());
            let redis = tracing::instrument::WithSubscriber::with_subscriber(Redis::connect(config), subscriber);
            let redis = redis.await.unwrap();
            redis.store().insert(steadfast::store::Key::new("p", "r"), "x").await.unwrap();
            assert!(!redis.store().capabilities().has(Capability::Durable));
            assert!(redis.store().capabilities().has(Capability::Linearizable), "`INFO` tells");
            let told = told.0.lock().unwrap().concat();
            assert!(told.contains("does not tell its settings"), "{told}");
        }
        let evicts = server::Redis::with(&["--maxmemory-policy", "allkeys-lru", "--rename-command", "CONFIG", ""]);
        let error = Redis::connect(RedisConfig::at(evicts.url())).await.unwrap_err();
        assert!(error.to_string().contains("noeviction"), "{error}");
    });
}
