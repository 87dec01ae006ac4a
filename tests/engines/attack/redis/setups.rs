//! Set-ups that people really write, and servers that are none.
use steadfast::store::{Key, StoreExt};

use super::*;
use crate::server::Certificates;

#[test]
fn a_port_of_another_protocol_is_named_with_a_question() {
    run(async {
        for scheme in ["redis", "rediss"] {
            let error = refused(config(format!("{scheme}://app:hunter2@127.0.0.1:{}", web_server()))).await;
            let words: &[&str] = if scheme == "redis" { &["127.0.0.1", "is this a Redis server"] } else { &["TLS"] };
            says(&error, PortErrorKind::Unavailable, words);
        }
    });
}

#[test]
fn tls_at_a_plain_port_and_the_reverse_are_named() {
    run(async {
        let plain = config(format!("rediss://:hunter2@127.0.0.1:{}", server::Redis::shared().port()));
        let error = refused(plain).await;
        assert!(matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::TimedOut), "{error}");
        assert!(error.to_string().contains("TLS"), "{error}");
        let encrypted = server::Redis::with_tls(&Certificates::new(), &[]);
        let error = refused(config(format!("redis://:hunter2@127.0.0.1:{}", encrypted.tls_port()))).await;
        says(&error, PortErrorKind::Unavailable, &["TLS", "rediss:"]);
    });
}

#[test]
fn urls_that_people_write_are_taken_or_refused_with_their_form() {
    run(async {
        let port = server::Redis::shared().port();
        for url in [
            format!("redis://localhost:{port}"),
            format!("redis://127.0.0.1:{port}/"),
            format!("redis://127.0.0.1:{port}/0"),
            format!("redis://127.0.0.1:{port}/15"),
        ] {
            connect(config(url)).await.store().insert(Key::new("p", "r"), "x").await.unwrap();
        }
        for url in
            ["unix:///run/redis.sock", "redis+unix:///run/redis.sock", "127.0.0.1:6379", "redis:127.0.0.1", "REDIS://x"]
        {
            says(&refused(config(url.to_owned())).await, PortErrorKind::Invalid, &["url", "redis://"]);
        }
        let far = refused(config(format!("redis://127.0.0.1:{port}/99"))).await;
        says(&far, PortErrorKind::Invalid, &["database 99"]);
        let user = refused(config(format!("redis://nobody:hunter2@127.0.0.1:{port}"))).await;
        says(&user, PortErrorKind::Denied, &["nobody", "password"]);
        let (_listener, silent) = silent();
        let limit = Duration::from_millis(300);
        let error = refused(config(format!("redis://127.0.0.1:{silent}")).connect_timeout(limit)).await;
        says(&error, PortErrorKind::TimedOut, &["300ms", "127.0.0.1"]);
    });
}

#[test]
fn a_password_of_any_text_is_percent_encoded_and_not_shown() {
    run(async {
        let password = "a/b:c@d?e#f%g&h=iü";
        let server = server::Redis::start();
        server.command(&["CONFIG", "SET", "requirepass", password]);
        let encoded: String = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let redis = connect(config(format!("redis://:{encoded}@127.0.0.1:{}", server.port()))).await;
        assert!(!format!("{redis:?} {:?}", redis.store()).contains(&encoded));
        let raw = config(format!("redis://:{password}@127.0.0.1:{}", server.port()));
        let debug = format!("{raw:?}");
        assert!(!debug.contains("e#f") && !debug.contains("a/b"), "{debug}");
        let error = Redis::connect(raw).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("e#f"), "{error:?}");
    });
}
