"""`fedadmm deploy`: real federations on Flower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedadmm.cli import app, options
from fedadmm.cli.display import draw, one_bar, print_ending, print_json, print_places, print_table
from fedadmm.cli.group import again, resumable
from fedadmm.study import config

if TYPE_CHECKING:
    from fedadmm.study.benefit import SiteBenefit

commands = typer.Typer(
    no_args_is_help=True, help="Real federations on Flower, here or over a network."
)
app.add_typer(
    commands,
    name="deploy",
    epilog="Example: fedadmm deploy local --clients 4 --tls",
    rich_help_panel="Deployment",
)
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a deployment.")]


@commands.command(
    cls=options.TakesFiles, epilog="Example: fedadmm deploy local hospitals --clients 4 --tls"
)
def local(
    source: options.Source = None,
    csv: options.Csv = None,
    target: options.TargetColumn = None,
    clients: Annotated[
        int | None,
        typer.Option("--clients", min=1, help="How many SuperNodes; by default 4."),
    ] = None,
    rounds: options.Rounds = None,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt, and authenticate nodes.")] = False,
    asynchronous: Annotated[
        bool, typer.Option("--asynchronous", help="Aggregate every update as it arrives.")
    ] = False,
    ledger: Annotated[
        bool | None,
        typer.Option(
            "--ledger/--no-ledger",
            help="Keep each client's contribution; the default, unless uploads are masked.",
        ),
    ] = None,
    out: options.Out = None,
    resume: options.Resume = False,
    sets: options.Sets = None,
    trackers: options.Trackers = None,
    report: options.Report = True,
    as_json: options.AsJson = False,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, run CONFIG, stop everything.

    CONFIG is hospitals by default, and with --resume --out DIR that of DIR, with its network.  With
    --csv every file is a site, whose columns are prepared as in `fedadmm run --csv`: from sums and
    lists of each file.  A table [policy] of CONFIG is what every site agrees to, as in site.toml.
    """
    from fedadmm.data import problems
    from fedadmm.data.loaders.tabular import table_files
    from fedadmm.flower.configured import Deployment
    from fedadmm.flower.deploy.local_federation import run_locally, stored_deployment

    stored = None
    if source is None and resume and out is not None:
        source, stored = str(out), stored_deployment(out)
    stored = stored or Deployment(4)
    clients, tls = clients or stored.clients, tls or stored.named
    tree = (
        config.of_problem("table") if csv and source is None else config.read(source or "hospitals")
    )
    policy = tree.pop("policy", {})
    tree = config.run_only(tree)
    if csv:
        if target is None:
            raise typer.BadParameter("--target is missing, expected the column to predict")
        paths = [str(Path(one).resolve()) for one in csv]
        table = {"name": "table", "path": paths, "target": target}
        tree["problem"] = table | {"preparation": "from-sums", "weights": "samples"}
    problem = tree.setdefault("problem", {})
    if isinstance(problem, dict):
        name = problems.canonical(problem.get("name", "digits"))
        if name == "table" and problem.get("client") is None and "path" in problem:
            clients = len(table_files(problem["path"]))
        elif name in problems.names() and problems.options(name).sites is None:
            config.assign(tree, "problem.clients", clients)
    options.apply(tree)
    chosen = config.resolve(tree)
    base = f"{Path(source or ('table' if csv else 'hospitals')).stem}-{chosen.label}-deployed"
    folder = options.output_folder(out, base, resume)
    deployment = Deployment(
        clients,
        mode="asynchronous"
        if asynchronous or chosen.algorithm.requirements.asynchronous
        else stored.mode,
        ledger=stored.ledger if ledger is None else "disk" if ledger else "none",
    )
    go_on = again(source=str(folder), out=folder, resume=True, rounds=None, sets=None)
    with resumable([*go_on, *["--trust-code"] * bool(config.code_in(tree))]):
        with one_bar(chosen) as tell:
            how = {"tls": tls, "resume": resume, "policy": policy}
            summary = run_locally(chosen, folder, deployment, watch=tell, **how)
        compared = _compared(chosen, folder)
        page = draw(folder, report)
    if as_json:
        shown = None if compared is None else compared.document()
        print_json(summary | {"directory": str(folder), "report": page, "comparison": shown})
        return
    print_ending(summary)
    refused = ", ".join(f"{count} {word}" for word, count in summary["network"].items())
    typer.echo(f"network {refused or 'nothing lost, nothing refused'}")
    if compared is not None:
        print_table(compared.table())
    print_places(run=folder, report=page)


def _compared(resolved: Any, folder: Path) -> SiteBenefit | None:
    """Compare the models at each site, for a demonstration that has all files here."""
    from fedadmm.flower.configured import sites
    from fedadmm.flower.deploy.local_federation import compare

    return None if sites(resolved) is None else compare(resolved, folder)


@commands.command(
    cls=options.TakesFiles,
    epilog="Example: fedadmm deploy init study --clients 4 --host fl.example.org",
)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    clients: Annotated[int, typer.Option("--clients", min=1, help="How many sites.")] = 2,
    host: Annotated[
        str, typer.Option("--host", help="The server's name or address, as the sites see it.")
    ] = "localhost",
    port: Annotated[
        int, typer.Option("--port", min=1, max=65534, help="The port that the sites reach.")
    ] = 9443,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How many rounds.")] = 50,
    features: Annotated[
        int, typer.Option("--features", min=1, help="Columns of the sites' tables, no label.")
    ] = 13,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="The privacy budget of every site; the noise is fitted."),
    ] = None,
    samples: Annotated[
        str,
        typer.Option(
            "--samples", metavar="N,…", help="Training samples of the sites, for the fit."
        ),
    ] = "100",
    csv: options.Csv = None,
    target: options.TargetColumn = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a project for several machines: app, keys, certificates and the exact commands.

    With --csv, one file per site, the app prepares the sites' columns jointly, from sums and lists
    of each file's training samples, as `fedadmm run --csv` does.
    """
    from fedadmm.data.problems.recorded import TableOptions
    from fedadmm.flower.deploy.project import write_project

    counts = samples.replace(",", " ").split()
    if not counts or not all(one.isdecimal() and int(one) > 0 for one in counts):
        raise typer.BadParameter(f"--samples: got {samples!r}, expected numbers such as 98,230")
    tables = None
    if csv:
        if target is None:
            raise typer.BadParameter("--target is missing, expected the column to predict")
        paths = [str(Path(one).resolve()) for one in csv]
        tables = TableOptions(path=paths, target=target, preparation="from-sums")
    made = write_project(
        folder,
        clients,
        host,
        port=port,
        rounds=rounds,
        features=features,
        epsilon=epsilon,
        samples=[int(one) for one in counts],
        tables=tables,
    )
    if as_json:
        print_json(
            {
                "directory": str(made.folder),
                "app": str(made.app),
                "server": str(made.server),
                "sites": [str(site) for site in made.sites],
                "commands": str(made.commands),
                "noise": None if made.noise is None else made.noise._asdict(),
            }
        )
        return
    if made.noise is not None:
        typer.echo(
            f"noise   multiplier {made.noise.multiplier:g} for {rounds} rounds with epsilon "
            f"{made.noise.epsilon:g}"
        )
        for count, lasts in sorted(made.noise.rounds.items()):
            typer.echo(f"        a site with {count} training samples can afford {lasts} rounds")
        typer.echo(
            "        every 10 rounds the sites answer with their accuracy, from the same budget: "
            f"noise {made.noise.evaluation:g} on the number of correct answers"
        )
    typer.echo(f"edit    {made.app}  (your model and your data)")
    typer.echo(f"follow  {made.commands}  (server first, then each site)")


@commands.command("add-site", epilog="Example: fedadmm deploy add-site study")
def add_site(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A project of `deploy init`.")],
    as_json: options.AsJson = False,
) -> None:
    """Write the folder of one more site, list it, and print the commands that admit it."""
    from fedadmm.flower.deploy.project import add_site as add

    made = add(folder)
    files = {"site": str(made.site), "commands": made.commands, "identity": made.identity}
    first, *others = [f"give    {command}  (in the folder server)" for command in made.commands]
    steps = [first, f"carry   {made.site}  (to the new site; start its node as COMMANDS.md says)"]
    client = made.site.name.rpartition("-")[2]
    peer = f"fedadmm deploy identity . --peer {client}={made.identity}"
    steps += [f"give    {peer}  (at every other site, for masked sums)", *others]
    _written(files, "\n".join(steps), as_json)


@commands.command("remove-site", epilog="Example: fedadmm deploy remove-site study 2")
def remove_site(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A project of `deploy init`.")],
    client: Annotated[int, typer.Argument(metavar="CLIENT", help="The number of the site.")],
    as_json: options.AsJson = False,
) -> None:
    """List a site as left, and print the commands that take out its contribution exactly."""
    from fedadmm.flower.deploy.project import remove_site as remove

    made = remove(folder, client)
    files = {"site": str(made.site), "commands": made.commands}
    steps = [f"give    {command}  (in the folder server)" for command in made.commands]
    _written(files, "\n".join(steps), as_json)


@commands.command(epilog="Example: fedadmm deploy gateway --listen 0.0.0.0:9443 --keys keys")
def gateway(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the sites come in.")
    ] = "0.0.0.0:9443",
    superlink: Annotated[
        str, typer.Option("--superlink", metavar="HOST:PORT", help="The SuperLink on loopback.")
    ] = "127.0.0.1:9444",
    keys: Annotated[
        Path, typer.Option("--keys", metavar="DIR", help="Holds ca.crt, server.crt, server.key.")
    ] = Path("keys"),
) -> None:
    """Forward the calls of the sites' nodes to a SuperLink, and nothing else."""
    from fedadmm.flower.deploy.gateway import run_gateway

    run_gateway(listen, superlink, keys)


@commands.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: fedadmm deploy node --superlink fl.example.org:9443 --node-config …",
)
def node(context: typer.Context) -> None:
    """Run a site's SuperNode from a warm process.

    Takes the options of flower-supernode, such as --superlink and --node-config.
    """
    from fedadmm.flower.site.node import run_node

    raise typer.Exit(run_node(context.args))


@commands.command(epilog="Example: fedadmm deploy pin study/app")
def pin(
    app_folder: Annotated[
        Path, typer.Argument(metavar="APP", help="The folder of a Flower app, or a built .fab.")
    ],
    as_json: options.AsJson = False,
) -> None:
    """Print the hash of an app, for the key `apps` of a site's site.toml.

    It is that of the bundle which `flwr run` builds; the same files give the same hash.
    """
    from fedadmm.flower.deploy.project import app_hash

    found = app_hash(app_folder)
    _written({"sha256": found}, f'apps = ["{found}"]', as_json)


@commands.command("rotate-key", epilog="Example: fedadmm deploy rotate-key sites/client-0")
def rotate_key(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="A site's folder with its key.")],
    as_json: options.AsJson = False,
) -> None:
    """Create a new key for a site's node; its state stays (docs: Operations)."""
    from fedadmm.flower.deploy.keys import rotate_node_key

    made = rotate_node_key(site)
    text = f"carry   {made.public}  (to the server, which registers it for the old one)"
    _written({"private": str(made.private), "public": str(made.public)}, text, as_json)


@commands.command(epilog="Example: fedadmm deploy identity sites/client-0")
def identity(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="A site's own folder.")],
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="CLIENT=HEX", help="Add another site's public identity."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a site's identity for secure aggregation, unless it has one.

    --peer adds the line that another site's operator has passed on to SITE/peers.json.
    """
    from fedadmm.flower.deploy.keys import add_peer, make_identity

    public = make_identity(site)
    for one in peer or ():
        number, _, key = one.partition("=")
        if not number.isdecimal():
            raise typer.BadParameter(f"--peer: got {one!r}, expected CLIENT=HEX")
        add_peer(site / "peers.json", int(number), key)
    text = f"public  {public}  (for peers.json of every site; not by way of the server)"
    _written({"private": str(site / "identity"), "public": public}, text, as_json)


@commands.command("rotate-certificates", epilog="Example: fedadmm deploy rotate-certificates keys")
def rotate_certificates(
    keys: Annotated[
        Path, typer.Argument(metavar="KEYS", help="Holds ca.crt, server.crt, server.key.")
    ],
    as_json: options.AsJson = False,
) -> None:
    """Make a new authority and certificate in KEYS/next (docs: Operations)."""
    from fedadmm.flower.deploy.keys import rotate_certificates as rotate

    made = rotate(keys)
    text = f"carry   {made.public}  (to every site, as its ca.crt, before the server changes)"
    _written({"private": str(made.private), "public": str(made.public)}, text, as_json)


def _written(files: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(files)
    else:
        typer.echo(text)


@commands.command(epilog="Example: fedadmm deploy status runs/hospitals-fedadmm-deployed")
def status(folder: _Folder, as_json: options.AsJson = False) -> None:
    """Show the processes of a deployment, the progress of the training, and each site."""
    from fedadmm.flower.deploy.local_federation import look

    found = look(folder)
    if as_json:
        print_json(found)
        return
    for process in found["processes"]:
        typer.echo(f"{'runs' if process['running'] else 'ended':6} {process['name']}")
    for site in found["sites"]:
        typer.echo(_site_line(site))
    most, waiting = found["influence"], found["waiting"]
    if most is not None:
        typer.echo(
            f"the largest influence of one site: client {most['client']}, "
            f"{100 * most['share']:.0f} % of the last update"
        )
    if waiting is not None:
        named = ", ".join(map(str, waiting["clients"]))
        typer.echo(f"round {waiting['round']} waits for client {named} ({waiting['at']})")
    typer.echo(f"{found['rounds']} rounds done; {found['status']}")


def _site_line(site: dict[str, Any]) -> str:
    last, when = site["last_round"], f" ({site['last_heard']})" if site["last_heard"] else ""
    heard = "never took part" if last is None else f"took part in round {last}{when}"
    refused = ", ".join(f"{count} {word}" for word, count in site["refused"].items())
    node = f" (node {site['node']})" if site["node"] is not None else ""
    words = [f"client {site['client']}{node}", f"version {site['version']}", heard]
    words += ["lost its state"] * site["lost"] + [refused] * bool(refused)
    return "; ".join(words) + (f" (last: {site['last_refusal']})" if refused else "")


_State = Annotated[Path, typer.Argument(metavar="STATE", help="The state-dir of a site.")]


@commands.command(epilog="Example: fedadmm deploy approve state 1f0c2a…")
def approve(
    state: _State,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The run to allow; without it, list them.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the runs that wait for this site's approval, or approve one with the shown terms."""
    from fedadmm.cli.display import print_json
    from fedadmm.flower.site import gate

    found = gate.waiting(state) if run is None else {run: gate.approve(state, run)}
    if as_json:
        print_json({"approved" if run is not None else "waiting": found})
        return
    for name, terms in found.items():
        typer.echo(f"{'approved' if run is not None else 'waits'}  {name}")
        for key, value in terms.items():
            text = ", ".join(value) if isinstance(value, list) else str(value)
            typer.echo(f"  {key:13} {text or _NO_TERM.get(key, 'none')}")
    if not found:
        typer.echo("no run waits")


_NO_TERM = {"app": "unknown: the node was not started by `fedadmm deploy node`"}


@commands.command(epilog="Example: fedadmm deploy ledger state")
def ledger(state: _State, as_json: options.AsJson = False) -> None:
    """Show what has left a site: when, for which run, how many bytes, and epsilon so far."""
    from fedadmm.cli.display import print_json
    from fedadmm.flower.site import gate

    lines = list(gate.left(state))
    if as_json:
        print_json({"left": lines})
        return
    for one in lines:
        spent = f"epsilon {one['epsilon']:.3g}" if "epsilon" in one else "no noise"
        run = f"run {one['run']} task {one['task']}" if one["run"] else "an evaluation"
        typer.echo(
            f"{one['at']}  client {one['client']}  {run}: {one['kind']}, "
            f"{one['bytes']} bytes, {spent}"
        )
    typer.echo(f"{len(lines)} replies, {sum(one['bytes'] for one in lines)} bytes")


@commands.command(epilog="Example: fedadmm deploy stop runs/hospitals-fedadmm-deployed")
def stop(folder: _Folder, as_json: options.AsJson = False) -> None:
    """Stop the processes that a local deployment left running; its run can be resumed."""
    from fedadmm.flower.deploy.local_federation import take_down

    ended = take_down(folder)
    if as_json:
        print_json({"ended": ended})
        return
    typer.echo(f"ended {', '.join(ended)}" if ended else "nothing was running")
