//~ `Result<u8, ()>` is not a future
//~ to implement `steadfast::call::Operation`
fn main() {
    let _ = steadfast::Pipeline::new().call(|| Ok::<u8, ()>(7));
}
