//! What is written: a trace for Perfetto and Chrome, and a page.

use crate::record::{Event, Operation, Record, What};
use plotters::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

/// Writes the trace: calls and launches by thread, operations and channels by communicator.
pub(crate) fn trace(
    record: &Record,
    (process, host): (u32, &str),
    to: &mut dyn Write,
) -> std::io::Result<()> {
    write!(to, "{{\"displayTimeUnit\":\"ns\",\"dropped\":{},\"traceEvents\":[", record.dropped)?;
    let mut first = true;
    let mut put = |events: &mut Vec<Value>| {
        events.drain(..).try_for_each(|event| {
            to.write_all(if std::mem::take(&mut first) { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut *to, &event).map_err(std::io::Error::from)
        })
    };
    let mut events = Vec::new();
    let ranks: Vec<String> = record.comms.iter().map(|comm| comm.rank.to_string()).collect();
    let name = format!("rank {} ({host}, process {process})", ranks.join(", "));
    events.push(named("process_name", process, 0, &name));
    for (at, comm) in record.comms.iter().enumerate() {
        let text = format!(
            "{} {:x}, rank {} of {} on {} hosts",
            comm.name, comm.number, comm.rank, comm.nranks, comm.nodes
        );
        events.push(named("thread_name", process, track(at), text.trim()));
    }
    put(&mut events)?;
    let offsets: Vec<i128> =
        (0..record.comms.len()).map(|comm| gpu_offset(&record.events, comm)).collect();
    // Times are from the beginning of a day on: as numbers of JSON they are exact then.
    let first_ns = record.events.iter().map(|event| event.began_ns).min().unwrap_or(0);
    let day = i128::from(first_ns / DAY_NS * DAY_NS);
    for event in &record.events {
        let offset = offsets.get(event.comm).copied().unwrap_or(0);
        push(&mut events, event, process, (offset, day));
        put(&mut events)?;
    }
    to.write_all(b"]}\n")
}

fn named(what: &str, process: u32, thread: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": { "name": name } })
}

/// Returns the number of a communicator's track, beyond those of threads.
fn track(comm: usize) -> u64 {
    2_000_000_000 + comm as u64
}

/// Returns what has to be added to the clock of a communicator's GPU. An event is told of after its
/// time: the least difference is the best.
fn gpu_offset(events: &[Event], comm: usize) -> i128 {
    let of = |event: &Event| {
        let told = [(event.gpu_ns.0, event.began_ns), (event.gpu_ns.1, event.ended_ns)];
        let known = told.into_iter().filter(|(gpu, _)| *gpu != 0);
        known.map(|(gpu, host)| i128::from(host) - i128::from(gpu)).min()
    };
    events.iter().filter(|event| event.comm == comm).filter_map(of).min().unwrap_or(0)
}

fn us(ns: i128) -> f64 {
    ns as f64 / 1e3
}

fn push(events: &mut Vec<Value>, event: &Event, process: u32, (gpu_offset, day): (i128, i128)) {
    let (began, ended) = (i128::from(event.began_ns) - day, i128::from(event.ended_ns) - day);
    let whole = |name: &str, args: Value| {
        json!({ "ph": "X", "name": name, "cat": "calls", "pid": process, "tid": event.thread,
                "ts": us(began), "dur": us(ended - began), "args": args })
    };
    match &event.what {
        What::Group { depth, captured } => {
            events.push(whole("group", json!({ "depth": depth, "captured": captured })));
        }
        What::Call { function, count, dtype, captured } => {
            let args = json!({ "count": count, "type": &**dtype, "captured": captured });
            events.push(whole(function, args));
        }
        What::Launch => events.push(whole("launch", json!({}))),
        What::Operation(of) => {
            let args = json!({
                "count": of.count, "type": &*of.dtype, "bytes": of.bytes(), "root or peer": of.other,
                "algorithm": &*of.algorithm, "protocol": &*of.protocol, "channels": of.channels,
                "plan": &*of.variant,
            });
            span(events, event, process, (&of.function, event.id), (began, ended), args);
        }
        What::Channel { number } => {
            let clock =
                |gpu: u64, host| if gpu == 0 { host } else { i128::from(gpu) + gpu_offset - day };
            let times = (clock(event.gpu_ns.0, began), clock(event.gpu_ns.1, ended));
            let name = format!("channel {number}");
            // Those of an operation overlap, so they are not nested in it.
            let args = json!({ "operation": format!("{:#x}", event.parent) });
            span(events, event, process, (&name, event.id), times, args);
        }
    }
}

/// Adds an event that may overlap with others of its track; those of an id are nested.
fn span(
    events: &mut Vec<Value>,
    event: &Event,
    process: u32,
    (name, id): (&str, u64),
    (began, ended): (i128, i128),
    args: Value,
) {
    let edge = |phase: &str, at: i128| {
        json!({ "ph": phase, "cat": "operations", "name": name, "id2": { "local": format!("{id:#x}") }, "pid": process,
                "tid": track(event.comm), "ts": us(at) })
    };
    let mut begin = edge("b", began);
    begin["args"] = args;
    events.extend([begin, edge("e", ended)]);
}

/// A day.
const DAY_NS: u64 = 86_400_000_000_000;
/// The most points of a plot.
const MOST_POINTS: usize = 20_000;

/// The times of the operations of one function, algorithm, protocol and size.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn at(&self, share: f64) -> f64 {
        let place = ((self.0.len() - 1) as f64 * share).round() as usize;
        self.0[place] as f64 / 1e3
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns a page with a table of all operations and two plots.
pub(crate) fn page(record: &Record, process: u32, host: &str) -> String {
    let operations = record.operations();
    let mut rows: BTreeMap<(String, u64, String), Times> = BTreeMap::new();
    for (_, of, ns) in &operations {
        let plan = [&of.algorithm, &of.protocol, &of.variant].map(|text| text.to_string());
        let plan = plan.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
        rows.entry((of.function.to_string(), of.bytes(), plan)).or_default().0.push(*ns);
    }
    let mut text = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>Operations of process \
         {process}</title><style>body{{font-family:sans-serif;margin:2em}}td,th{{text-align:right;\
         padding:0 1em}}td:first-child,td:nth-child(3){{text-align:left}}</style>\
         <h1>Operations of process {process} on {}</h1><p>{} operations, {} events that were not \
         kept.</p>",
        escaped(host),
        operations.len(),
        record.dropped
    );
    text += &plot(&operations, "Time (µs) over bytes", |_, of, us| (of.bytes() as f64, us));
    let first = operations.iter().map(|(event, ..)| event.began_ns).min().unwrap_or(0);
    text += &plot(&operations, "Time (µs) over ms since the first operation", |event, _, us| {
        ((event.began_ns - first) as f64 / 1e6, us)
    });
    text += "<table><tr><th>operation<th>bytes<th>plan<th>number<th>least µs<th>median<th>99 %\
             <th>most<th>GB/s at the median</tr>";
    for ((function, bytes, plan), times) in &mut rows {
        times.0.sort_unstable();
        let median = times.at(0.5);
        let _ = write!(
            text,
            "<tr><td>{}<td>{bytes}<td>{}<td>{}<td>{:.1}<td>{median:.1}<td>{:.1}<td>{:.1}<td>{:.3}",
            escaped(function),
            escaped(plan),
            times.0.len(),
            times.at(0.0),
            times.at(0.99),
            times.at(1.0),
            *bytes as f64 / median.max(1e-3) / 1e3,
        );
    }
    text + "</table></html>\n"
}

/// Returns a coordinate of a point.
type Axis = fn(&(f64, f64)) -> f64;

/// Draws a point for each operation, in a colour for each function; both axes are logarithmic.
fn plot(
    operations: &[(&Event, &Operation, u64)],
    title: &str,
    place: impl Fn(&Event, &Operation, f64) -> (f64, f64),
) -> String {
    let mut series: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for (event, of, ns) in operations.iter().step_by(operations.len() / MOST_POINTS + 1) {
        let (x, y) = place(event, of, (*ns).max(1) as f64 / 1e3);
        series.entry(&of.function).or_default().push((x.max(1e-3), y));
    }
    let all = || series.values().flatten();
    let most = |of: Axis| all().map(of).fold(1.0, f64::max) * 1.5;
    let least = |of: Axis| all().map(of).fold(1.0, f64::min) / 1.5;
    let mut svg = String::new();
    let mut draw = || -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(&mut svg, (900, 360)).into_drawing_area();
        root.fill(&WHITE)?;
        let (x, y): (Axis, Axis) = (|point| point.0, |point| point.1);
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(60)
            .build_cartesian_2d((least(x)..most(x)).log_scale(), (least(y)..most(y)).log_scale())?;
        chart.configure_mesh().draw()?;
        for (at, (name, points)) in series.iter().enumerate() {
            let colour = Palette99::pick(at).to_rgba();
            let dots = points.iter().map(|point| Circle::new(*point, 2, colour.filled()));
            let drawn = chart.draw_series(dots)?.label(*name);
            drawn.legend(move |(x, y)| Circle::new((x, y), 4, colour.filled()));
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).draw()?;
        root.present()?;
        Ok(())
    };
    let drawn = draw();
    match drawn {
        Ok(()) => svg,
        Err(error) => format!("<p>No plot: {}</p>", escaped(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    #[test]
    fn a_trace_has_all_events_with_channels_by_the_hosts_clock() {
        let mut text = Vec::new();
        trace(&sample(), (12, "here"), &mut text).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |phase: &str, name: &str| {
            let is = |e: &&Value| e["ph"] == phase && e["name"] == name;
            events.iter().filter(is).collect::<Vec<_>>()
        };
        assert_eq!((of("b", "AllReduce").len(), of("e", "AllReduce").len()), (2, 2));
        assert_eq!(of("b", "AllReduce")[0]["args"]["bytes"], 1024);
        let [began, ended] = ["b", "e"].map(|phase| of(phase, "channel 0")[0]["ts"].as_f64());
        // It began at 70 ns of the GPU's clock, of which the host was told at 1500 ns.
        assert_eq!((began, ended), (Some(1.5), Some(1.9)));
        assert_ne!(of("b", "channel 0")[0]["id2"], of("b", "AllReduce")[0]["id2"]);
        assert_eq!(of("b", "channel 0")[0]["id2"], of("e", "channel 0")[0]["id2"]);
        assert_ne!(of("b", "AllReduce")[0]["id2"], of("b", "AllReduce")[1]["id2"]);
    }

    #[test]
    fn a_page_has_a_row_for_each_kind_of_operation_and_two_plots() {
        let page = page(&sample(), 12, "a<b");
        assert!(page.contains("<td>AllReduce<td>1024<td>RING LL<td>2<td>0.3<td>0.4"), "{page}");
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("on a&lt;b") && !page.contains("No plot"));
    }
}
