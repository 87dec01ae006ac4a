//! Requests that two programs might frame differently, against a gate on a real server of hyper.
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use steadfast::tower::{GateConfig, GateLayer, GateRules};
use tokio::net::TcpListener;

/// Bodies and headers that reached the inner service.
type Seen = Arc<Mutex<Vec<(Vec<u8>, Vec<String>)>>>;

async fn accept(State(seen): State<Seen>, headers: HeaderMap, body: Bytes) -> &'static str {
    let names = headers.keys().map(|name| name.as_str().to_owned()).collect();
    seen.lock().unwrap().push((body.to_vec(), names));
    "passed"
}

/// Starts a gate in front of `/orders`, on a thread that ends with the process.
fn start() -> (SocketAddr, Seen) {
    let seen = Seen::default();
    let rules = GateRules::new().post("/orders").json().max_body(4096);
    let gate = GateLayer::new(rules, GateConfig::default()).unwrap();
    let app = Router::new().route("/orders", post(accept)).layer(gate).with_state(seen.clone());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, app).await.unwrap();
        });
    });
    (told.recv().unwrap(), seen)
}

/// A request behind the others, after which the server closes the connection.
const LAST: &[u8] = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Sends bytes on a connection of their own, and one request behind them. Returns the statuses of all answers, without that
/// of the last one.
fn statuses(address: SocketAddr, bytes: &[u8]) -> Vec<u16> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // The server may close before it has read everything.
    let _ = stream.write_all(&[bytes, LAST].concat());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer);
    // An answer to HTTP/1.0 has its version.
    let lines = text.split("HTTP/1.").skip(1);
    let mut statuses: Vec<u16> =
        lines.map(|line| line.get(2..5).and_then(|code| code.parse().ok()).unwrap_or(0)).collect();
    if statuses.last() == Some(&404) && statuses.len() > 1 {
        statuses.pop();
    }
    statuses
}

/// Headers of the list of "smuggler" by defparam (`configs/default.py`), of which each hides a transfer coding from some
/// programs.
fn listed() -> Vec<Vec<u8>> {
    let mut headers: Vec<Vec<u8>> = [
        " Transfer-Encoding: chunked",
        "Transfer-Encoding:\tchunked",
        "Transfer-Encoding\t:\tchunked",
        "Transfer-Encoding : chunked",
    ]
    .map(|header| header.as_bytes().to_vec())
    .to_vec();
    for byte in [0x1, 0x4, 0x8, 0x9, 0xa, 0xb, 0xc, 0xd, 0x1f, 0x20, 0x7f, 0xa0, 0xff] {
        let with = |before: &str, after: &str| [before.as_bytes(), &[byte], after.as_bytes()].concat();
        headers.extend([
            with("Transfer-Encoding:", "chunked"),
            with("Transfer-Encoding", ": chunked"),
            with("", "Transfer-Encoding: chunked"),
            with("Transfer-Encoding: chunked", ""),
            with("X: X", "Transfer-Encoding: chunked"),
            with("Transfer-Encoding: chunked", "X: X"),
            with("X: X\r", "Transfer-Encoding: chunked"),
            with("X: X", "\nTransfer-Encoding: chunked"),
            with("Transfer-Encoding: chunked\r", "X: X"),
            with("Transfer-Encoding: chunked", "\nX: X"),
        ]);
    }
    headers
}

// Guarantee: tower 5, 7.
#[test]
fn the_listed_forms_of_smuggling_reach_no_service_behind_the_gate() {
    let (address, seen) = start();
    let inner =
        "POST /orders HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n\"hidden\"";
    let own = [
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, identity",
        "transfer_encoding: chunked",
        "Content-Length: 0",
        "Content-Length: 5, 0",
        "content-length : 0",
        "Host: b",
        "Expect: 100-continue\r\nTransfer-Encoding: xchunked",
    ];
    let headers = listed().into_iter().chain(own.map(|header| header.as_bytes().to_vec()));
    let (mut refused, mut passed) = (0, 0);
    for header in headers {
        for rest in [format!("0\r\n\r\n{inner}"), format!("5\r\nhello\r\n0\r\n\r\n{inner}")] {
            let request = [
                b"POST /orders HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n",
                &header[..],
                format!("\r\nContent-Length: {}\r\n\r\n{rest}", rest.len()).as_bytes(),
            ]
            .concat();
            let answers = statuses(address, &request);
            let shown = String::from_utf8_lossy(&header).into_owned();
            let calls = std::mem::take(&mut *seen.lock().unwrap());
            assert_eq!(answers.len(), 1, "{shown:?}: one request has one answer: {answers:?}");
            match answers[0] {
                200 => {
                    passed += 1;
                    let [(body, names)] = &calls[..] else { panic!("{shown:?}: {} calls", calls.len()) };
                    assert_eq!(body, rest.as_bytes(), "{shown:?}: framed by its length alone");
                    let mut names = names.clone();
                    names.sort();
                    assert_eq!(names, ["content-length", "content-type"], "{shown:?}");
                }
                status => {
                    refused += 1;
                    assert!(
                        [400, 411].contains(&status) && calls.is_empty(),
                        "{shown:?}: {status}, {} calls",
                        calls.len()
                    );
                }
            }
        }
    }
    assert!(refused > passed && refused + passed >= 286, "{refused} refused, {passed} passed by their length");
    println!("{refused} refused, {passed} framed by their length");
    // The same connection goes on after a request that is fine.
    let twice = inner.repeat(2);
    assert_eq!(statuses(address, twice.as_bytes()), [200, 200]);
}

// Guarantee: tower 5, 7.
#[test]
fn targets_of_other_forms_are_refused_on_a_real_server() {
    let (address, seen) = start();
    for (line, expected) in [
        ("GET /orders/../admin HTTP/1.1", 400),
        ("GET /orders%2f..%2fadmin HTTP/1.1", 400),
        ("GET //orders HTTP/1.1", 400),
        ("GET http://evil.example/orders HTTP/1.1", 400),
        ("GET /admin HTTP/1.1", 404),
        ("OPTIONS * HTTP/1.1", 400),
        ("CONNECT evil.example:443 HTTP/1.1", 400),
        ("PURGE /orders HTTP/1.1", 405),
        ("POST /orders HTTP/1.0", 411),
        ("POST /orders HTTP/3.0", 0),
        ("POST  /orders HTTP/1.1", 400),
        ("POST /orders\0 HTTP/1.1", 400),
    ] {
        let answers = statuses(address, format!("{line}\r\nHost: a\r\n\r\n").as_bytes());
        assert!(answers.len() <= 1 && !answers.contains(&200), "{line}: {answers:?}");
        if expected != 0 {
            assert_eq!(answers, [expected], "{line}");
        }
    }
    assert_eq!(statuses(address, b"GET /orders HTTP/1.1\r\n\r\n"), [405], "the cheapest rule first");
    let body = "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(statuses(address, format!("POST /orders HTTP/1.1\r\n{body}").as_bytes()), [400], "no host");
    assert!(seen.lock().unwrap().is_empty());
    // The server cuts a fragment off before the gate sees the target.
    assert_eq!(statuses(address, format!("POST /orders#/../x HTTP/1.1\r\nHost: a\r\n{body}").as_bytes()), [200]);
}
