//! Facts of the server on which the design stands. If one of these changes, the page of the backend is wrong.
use super::run;
use crate::server;

fn api(server: &server::Nats, call: &str, body: &str) -> String {
    server.request(&format!("$JS.API.{call}"), body).unwrap()
}

/// Returns the address to which a receiver acknowledges its delivery.
pub(super) fn next(server: &server::Nats, consumer: &str) -> String {
    use std::io::{BufRead as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let body = r#"{"batch":1,"expires":5000000000}"#;
    write!(
        stream,
        "CONNECT {{\"verbose\":false,\"headers\":true}}\r\nSUB inbox 1\r\nPUB $JS.API.CONSUMER.MSG.NEXT.{consumer} inbox {}\r\n{body}\r\n",
        body.len()
    )
    .unwrap();
    let lines = std::io::BufReader::new(stream).lines();
    let message = lines.map(Result::unwrap).find(|line| line.starts_with("MSG ")).unwrap();
    message.split(' ').nth(3).unwrap().to_owned()
}

#[test]
fn an_acknowledgement_of_an_earlier_delivery_removes_the_message() {
    run(async {
        let server = server::Nats::start();
        api(&server, "STREAM.CREATE.Q", r#"{"name":"Q","subjects":["q.>"],"retention":"workqueue","storage":"file"}"#);
        let consumer =
            r#"{"stream_name":"Q","config":{"durable_name":"w","ack_policy":"explicit","ack_wait":200000000}}"#;
        api(&server, "CONSUMER.CREATE.Q.w", consumer);
        server.request("q.a", "x").unwrap();
        let earlier = next(&server, "Q.w");
        let later = next(&server, "Q.w");
        assert!(earlier.contains(".w.1.1.") && later.contains(".w.2.1."), "{earlier}, {later}");
        // The answers are empty: they do not tell whether the acknowledgement took effect.
        assert_eq!(server.request(&earlier, "+ACK").unwrap(), "");
        assert!(api(&server, "STREAM.INFO.Q", "").contains(r#""messages":0"#), "a guard is needed");
        assert_eq!(server.request(&later, "+ACK").unwrap(), "");
    });
}
