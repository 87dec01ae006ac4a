//~ `Result<u8, ()>` is not a future
//~ blocks: `call_blocking`
fn main() {
    let _ = steadfast::Pipeline::new().call(|| Ok::<u8, ()>(7));
}
