//~ captured variable cannot escape `FnMut` closure body
//~ returns an `async` block that contains a reference to a captured variable, which then escapes the closure body
struct Connection;

impl Connection {
    async fn send(&mut self) -> Result<(), ()> {
        Ok(())
    }
}

fn main() {
    let mut connection = Connection;
    // `call::with_state(&mut connection, async |connection| connection.send().await)` compiles.
    let _ = steadfast::Pipeline::new().call(|| async { connection.send().await });
}
