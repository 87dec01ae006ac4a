//~ in a closure with no arguments: `|| { /* code */ }`
//~ to implement `steadfast::call::Operation`
fn main() {
    let _ = steadfast::Pipeline::new().call(async { Ok::<u8, ()>(7) });
}
