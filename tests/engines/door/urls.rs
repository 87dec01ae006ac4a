//! URLs that people write, mistype and paste: each is accepted or refused by a rule, and none shows its password.
use std::time::Duration;

use steadfast::{
    backend,
    port::{PortError, PortErrorKind},
};

use super::traces::Traces;

/// The secret of each URL that has one.
const SECRET: &str = "S3cr3t";

/// The answer to a URL.
#[derive(Clone, Copy)]
enum Outcome {
    /// It is understood: the handle tries the server, which is not there.
    Tried,
    /// It is refused as `Invalid`, with these words.
    Refused(&'static str),
}
use Outcome::{Refused, Tried};

const AT: &str = "at most one `@`";
const HOST: &str = "must name a host";
const PORT: &str = "ports from 1 to 65535";

#[cfg(feature = "postgres")]
const POSTGRES: &[(&str, Outcome)] = &[
    ("postgres://u:S3cr3t@127.0.0.1:1/db", Tried),
    ("postgresql://u:S3cr3t@127.0.0.1:1/db", Tried),
    ("postgres://127.0.0.1:1", Tried),
    ("postgres://u@127.0.0.1:1", Tried),
    ("postgres://u:S3cr3t%40x@127.0.0.1:1/db", Tried),
    ("postgres://u:S3cr3t:x@127.0.0.1:1/db", Tried),
    ("postgres://u:@127.0.0.1:1/db", Tried),
    ("postgres://u:S3cr3t@[::1]:1/db", Tried),
    ("postgres://u:S3cr3t@127.0.0.1:1,[::1]:1/db", Tried),
    ("postgres://u:S3cr3t@no-such-host.invalid/db", Tried),
    ("postgres://u:S3cr3t@%2Fnowhere%2Fsockets/db", Tried),
    ("postgres:///db?host=/nowhere/sockets&password=S3cr3t", Tried),
    ("postgres://127.0.0.1:1/db?user=u&password=S3cr3t", Tried),
    ("postgres://127.0.0.1:1/db?user=u&password=S3cr3t%40x", Tried),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?sslmode=disable", Tried),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?sslmode=prefer", Tried),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?sslmode=require", Tried),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?sslmode=verify-full", Tried),
    ("host=127.0.0.1 port=1 user=u password=S3cr3t", Tried),
    ("host=127.0.0.1 port=1 user=u password='S3cr3t @x' sslmode=verify-full", Tried),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?sslmode=allow", Refused("sslmode")),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?sslmode=S3cr3t", Refused("sslmode")),
    ("postgres://u:x@S3cr3t@127.0.0.1:1/db", Refused(AT)),
    ("postgres://u:x@S3cr3t@host/db", Refused(AT)),
    ("postgres://u@x:S3cr3t@127.0.0.1:1/db", Refused(AT)),
    ("postgres://u:x/S3cr3t@127.0.0.1:1/db", Refused(AT)),
    ("postgres://u:x?S3cr3t@127.0.0.1:1/db", Refused(AT)),
    ("postgres://127.0.0.1:1/db?user=u&password=x@S3cr3t", Refused(AT)),
    ("postgres://u:S3cr3t@/db", Refused(HOST)),
    ("postgres://u:S3cr3t@:1/db", Refused(HOST)),
    ("postgres://u:S3cr3t@127.0.0.1:1,/db", Refused(HOST)),
    ("postgres://u:S3cr3t@127.0.0.1 :1/db", Refused("host")),
    ("postgres://u:S3cr3t@127.0.0.1:0/db", Refused(PORT)),
    ("postgres://u:S3cr3t@127.0.0.1:65536/db", Refused("must be like")),
    ("postgres://u:S3cr3t@127.0.0.1:port/db", Refused("must be like")),
    ("postgres://u:S3cr3t", Refused("must be like")),
    ("postgres://u:%S3cr3t%FF@127.0.0.1:1/%FF", Refused("must be like")),
    ("postgres://u:S3cr3t@[::1/db", Refused("must be like")),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?sslkey=S3cr3t", Refused("tls.key")),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?sslpassword=S3cr3t", Refused("sslpassword")),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?passfile=S3cr3t", Refused("passfile")),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?sslrootcert=/x", Refused("tls.roots")),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?pool_size=3", Refused("connections")),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?S3cr3t=1", Refused("must be like")),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?S3cr3t", Refused("must be like")),
    ("postgres://u:S3cr3t@127.0.0.1:1/db?channel_binding=require&sslmode=disable", Refused("channel_binding")),
    ("POSTGRES://u:S3cr3t@127.0.0.1:1/db", Refused("must be like")),
    ("postgres:/u:S3cr3t@127.0.0.1:1/db", Refused("must be like")),
    ("postgres:u:S3cr3t@127.0.0.1:1/db", Refused("must be like")),
    ("jdbc:postgresql://127.0.0.1:1/db?user=u&password=S3cr3t", Refused("must be like")),
    ("u:S3cr3t@127.0.0.1:1/db", Refused("must be like")),
    ("", Refused(HOST)),
];

#[cfg(feature = "redis")]
const REDIS: &[(&str, Outcome)] = &[
    ("redis://127.0.0.1:1", Tried),
    ("redis://:S3cr3t@127.0.0.1:1", Tried),
    ("redis://u:S3cr3t@127.0.0.1:1/2", Tried),
    ("redis://u:S3cr3t%40x@127.0.0.1:1", Tried),
    ("redis://u:S3cr3t@[::1]:1", Tried),
    ("redis://u:S3cr3t@no-such-host.invalid", Tried),
    ("rediss://u:S3cr3t@127.0.0.1:1", Tried),
    ("redis://u:x@S3cr3t@127.0.0.1:1", Refused(AT)),
    ("redis://u:x/S3cr3t@127.0.0.1:1", Refused(AT)),
    ("redis://u:x#S3cr3t@127.0.0.1:1", Refused(AT)),
    ("redis://u:x?S3cr3t@127.0.0.1:1", Refused(AT)),
    ("redis://S3cr3t@127.0.0.1:1", Refused("password for its user")),
    ("redis://127.0.0.1:1?password=S3cr3t", Refused("no query")),
    ("redis://127.0.0.1:1/0?password=S3cr3t", Refused("no query")),
    ("redis://u:S3cr3t@127.0.0.1:1/#S3cr3t", Refused("no query")),
    ("redis://u:S3cr3t@", Refused("must be `redis://")),
    ("redis://u:S3cr3t", Refused("must be `redis://")),
    ("redis://u:S3cr3t@127.0.0.1:0", Refused(PORT)),
    ("redis+sentinel://u:S3cr3t@127.0.0.1:1,127.0.0.1:2/jobs/2", Tried),
    ("redis+sentinel://u:x@S3cr3t@127.0.0.1:1/jobs", Refused(AT)),
    ("redis+sentinel://u:S3cr3t@127.0.0.1:1", Refused("must be `redis+sentinel://")),
    ("redis+sentinel://u:S3cr3t@127.0.0.1:1/jobs?x=S3cr3t", Refused("no query")),
    ("rediss+sentinel://u:S3cr3t@127.0.0.1:1,127.0.0.1:0/jobs", Refused(PORT)),
    ("redis://u:S3cr3t@127.0.0.1:65536", Refused("must be `redis://")),
    ("redis://u:S3cr3t@127.0.0.1:1/S3cr3t", Refused("must be `redis://")),
    ("redis://u:S3cr3t@127.0.0.1:1/-1", Refused("database number")),
    ("redis://u:S3cr3t@127.0.0 .1:1", Refused("must be `redis://")),
    ("REDIS://u:S3cr3t@127.0.0.1:1", Refused("must be `redis://")),
    ("redis:/u:S3cr3t@127.0.0.1:1", Refused("must be `redis://")),
    ("redis:u:S3cr3t@127.0.0.1:1", Refused("must be `redis://")),
    ("unix:///run/redis.sock?pass=S3cr3t", Refused("must be `redis://")),
    ("u:S3cr3t@127.0.0.1:1", Refused("must be `redis://")),
    ("", Refused("must be `redis://")),
];

#[cfg(feature = "nats")]
const NATS: &[(&str, Outcome)] = &[
    ("nats://127.0.0.1:1", Tried),
    ("nats://u:S3cr3t@127.0.0.1:1", Tried),
    ("nats://S3cr3t@127.0.0.1:1", Tried),
    ("nats://u:S3cr3t%40x@127.0.0.1:1", Tried),
    ("nats://u:S3cr3t@127.0.0.1:1/", Tried),
    ("nats://u:S3cr3t@[::1]:1", Tried),
    ("nats://u:S3cr3t@127.0.0.1:1,127.0.0.2:1", Tried),
    ("nats://u:S3cr3t@127.0.0.1:1,nats://127.0.0.2:1", Tried),
    ("nats://u:S3cr3t@127.0.0.1:1,nats://u:S3cr3t@127.0.0.2:1", Tried),
    ("nats://u:S3cr3t@no-such-host.invalid", Tried),
    ("tls://u:S3cr3t@127.0.0.1:1", Tried),
    ("nats://u:x@127.0.0.1:1,nats://u:S3cr3t@127.0.0.2:1", Refused("same user")),
    ("nats://127.0.0.1:1,nats://u:S3cr3t@127.0.0.2:1", Refused("same user")),
    ("nats://u:S3cr3t@127.0.0.1:1,tls://u:S3cr3t@127.0.0.2:1", Refused("must be `nats://")),
    ("nats://u:x@S3cr3t@127.0.0.1:1", Refused(AT)),
    ("nats://u:x/S3cr3t@127.0.0.1:1", Refused(AT)),
    ("nats://u:x#S3cr3t@127.0.0.1:1", Refused(AT)),
    ("nats://127.0.0.1:1?token=S3cr3t", Refused("no query")),
    ("nats://u:S3cr3t@127.0.0.1:1/S3cr3t", Refused("must be `nats://")),
    ("nats://u:S3cr3t@", Refused("must be `nats://")),
    ("nats://u:S3cr3t", Refused("must be `nats://")),
    ("nats://u:S3cr3t@127.0.0.1:1,", Refused("must be `nats://")),
    ("nats://u:@127.0.0.1:1", Refused("must be `nats://")),
    ("nats://u:S3cr3t%F@127.0.0.1:1", Refused("must be `nats://")),
    ("nats://u:S3cr3t@127.0.0.1:0", Refused(PORT)),
    ("nats://u:S3cr3t@127.0.0.1:65536", Refused("must be `nats://")),
    ("nats://u:S3cr3t@127.0.0 .1:1", Refused("must be `nats://")),
    ("NATS://u:S3cr3t@127.0.0.1:1", Refused("must be `nats://")),
    ("ws://u:S3cr3t@127.0.0.1:1", Refused("must be `nats://")),
    ("nats:u:S3cr3t@127.0.0.1:1", Refused("must be `nats://")),
    ("u:S3cr3t@127.0.0.1:1", Refused("must be `nats://")),
    ("", Refused("must be `nats://")),
];

/// URLs for [`backend::open`] alone.
const OPEN: &[(&str, Outcome)] = &[
    ("", Refused("must begin with a scheme")),
    ("S3cr3t", Refused("must begin with a scheme")),
    ("memory:S3cr3t", Refused("nothing may follow")),
    ("memory://u:S3cr3t@host", Refused("nothing may follow")),
    ("sqlite:", Refused("must name a file")),
    ("sqlite:/", Refused("must name a file")),
    ("mysql://u:S3cr3t@host/db", Refused("\"mysql\"")),
    ("MEMORY:", Refused("must begin with a scheme")),
    ("u:S3cr3t@host", Refused("must begin with a scheme")),
    ("S3cr3t@host:6379", Refused("must begin with a scheme")),
    ("S3cr3t:x@host", Refused("must begin with a scheme")),
    ("//u:S3cr3t@host", Refused("must begin with a scheme")),
];

/// Asserts the outcome of each URL, and that no text has the secret.
fn each_has_its_outcome(
    urls: &[(&str, Outcome)],
    config: impl Fn(&str) -> String,
    connect: impl AsyncFn(&str) -> PortError,
) {
    let (traces, _guard) = Traces::begin();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut wrong = Vec::new();
    for (url, outcome) in urls {
        let error = runtime.block_on(crate::server::ends(connect(url)));
        let is_met = match outcome {
            Tried => matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::TimedOut),
            Refused(words) => error.kind() == PortErrorKind::Invalid && error.to_string().contains(words),
        };
        if !is_met {
            wrong.push(format!("{url}: {error}"));
        }
        let traced = traces.take();
        for (what, text) in
            [("error", error.to_string()), ("debug", format!("{error:?}")), ("config", config(url)), ("trace", traced)]
        {
            if text.contains(SECRET) {
                wrong.push(format!("{url}: its {what} shows the password: {text}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), urls.len(), wrong.join("\n"));
}

#[cfg(feature = "postgres")]
#[test]
fn each_url_of_postgres_has_its_outcome_and_shows_no_password() {
    use steadfast::backend::postgres::{Postgres, PostgresConfig};

    let config = |url: &str| PostgresConfig::at(url).connect_timeout(Duration::from_secs(5));
    let notices = |url: &str| format!("{:?}", PostgresConfig::at("postgres://host").notices_url(url.to_owned()));
    each_has_its_outcome(
        POSTGRES,
        |url| format!("{:?} {}", config(url), notices(url)),
        async |url| Postgres::connect(config(url)).await.unwrap_err(),
    );
}

#[cfg(feature = "redis")]
#[test]
fn each_url_of_redis_has_its_outcome_and_shows_no_password() {
    use steadfast::backend::redis::{Redis, RedisConfig};

    let config = |url: &str| RedisConfig::at(url).connect_timeout(Duration::from_secs(5));
    each_has_its_outcome(
        REDIS,
        |url| format!("{:?}", config(url)),
        async |url| Redis::connect(config(url)).await.unwrap_err(),
    );
}

#[cfg(feature = "nats")]
#[test]
fn each_url_of_nats_has_its_outcome_and_shows_no_password() {
    use steadfast::backend::nats::{Nats, NatsConfig};

    let config = |url: &str| NatsConfig::at(url).connect_timeout(Duration::from_secs(5));
    each_has_its_outcome(
        NATS,
        |url| format!("{:?}", config(url)),
        async |url| Nats::connect(config(url)).await.unwrap_err(),
    );
}

#[test]
fn each_url_that_names_no_engine_has_its_outcome_and_shows_no_password() {
    each_has_its_outcome(OPEN, |_| String::new(), async |url| backend::open(url).await.unwrap_err());
}

#[test]
fn a_key_that_is_taken_for_a_path_is_not_shown() {
    use steadfast::backend::TlsConfig;

    let tls = TlsConfig::default().certificate("S3cr3t\nS3cr3t".to_owned()).key("MIIEvS3cr3t/S3cr3t=".to_owned());
    assert!(!format!("{tls:?}").contains(SECRET), "{tls:?}");
    let shown = format!("{:?}", TlsConfig::default().key("/run/secrets/key".to_owned()));
    assert!(shown.contains("/run/secrets/key"), "{shown}");
}
