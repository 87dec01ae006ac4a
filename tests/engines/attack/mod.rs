//! Hostile and careful users: set-ups that people really write, limits, dropped futures, and operators who change a server
//! that is in use.
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;

use std::{future::Future, net::TcpListener, time::Duration};

use steadfast::port::PortErrorKind;

use crate::says;

/// Longest time in which anything here ends: a request, the wait for a connection, an attempt to connect, and a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for a future that must end.
#[track_caller]
fn ends<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let timed = tokio::time::timeout(PATIENCE, future);
    async move { timed.await.unwrap_or_else(|_| panic!("{what} does not end")) }
}

/// Returns a port that accepts connections, and answers nothing, as long as the listener lives.
fn silent() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Returns a port that speaks HTTP.
fn web_server() -> u16 {
    use std::io::{Read as _, Write as _};
    let (listener, port) = silent();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            // A close with unread bytes would reset the connection, and the answer could be lost.
            let _ = client.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = client.shutdown(std::net::Shutdown::Write);
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        }
    });
    port
}
