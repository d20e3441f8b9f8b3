// The catalogue's pages: search in the list, and builds judged for a target. No text is ever made into markup.
"use strict";

(() => {
  // --- Targets, as src/kernels/resolver/target.py parses them --------------------------------------------------

  const TARGET = new RegExp(
    "^(?:torch([0-9]+\\.[0-9]+(?:\\.[0-9]+)?)-)?(?:(cxx11|cxx98)-)?(?:tvm-ffi([0-9]+\\.[0-9]+(?:\\.[0-9]+)?)-)?" +
      "(?:py(3\\.[0-9]+)(t?)-)?([a-z]+[a-z0-9_.]*)-([A-Za-z0-9_]+)-([a-z]+)([0-9][0-9.]*)?$"
  );
  const CPUS = { arm64: "aarch64", amd64: "x86_64", x64: "x86_64" };
  const SYSTEMS = { macos: "darwin", win: "windows" };
  const has = (object, name) => Object.prototype.hasOwnProperty.call(object, name);

  function minor(text) {
    const match = /^([0-9]{1,4})\.([0-9]{1,4})/.exec(text || "");
    return match && [Number(match[1]), Number(match[2])];
  }

  const compare = (one, other) => one[0] - other[0] || one[1] - other[1];
  const same = (one, other) => (one && other ? compare(one, other) === 0 : !one && !other);
  const dotted = (version) => (version ? version.join(".") : "none");

  function accelerator(text, rules) {
    const names = Object.keys(rules);
    for (const name of names) {
      const rule = rules[name];
      if (!rule.versioned && text === rule.token) return [name, null];
      const match = rule.versioned && text.startsWith(rule.token) && /^(0|[1-9][0-9]{0,4})([0-9])$/.exec(text.slice(rule.token.length));
      if (match) return [name, [Number(match[1]), Number(match[2])]];
    }
    for (const name of names) {
      const rest = text.slice(rules[name].token.length);
      if (rules[name].versioned && text.startsWith(rules[name].token) && /^([0-9]+\.[0-9]+)?$/.test(rest)) return [name, minor(rest)];
    }
    throw new Error(`no backend is called ${text}`);
  }

  function architecture(text, rule) {
    if (rule.arch === "capability") {
      const match = /^(?:sm|compute)_([1-9][0-9]{0,2})([0-9])[af]?$/.exec(text) || /^([1-9][0-9]?)\.([0-9])a?$/.exec(text);
      return match && `${match[1]}.${match[2]}`;
    }
    return /^[A-Za-z][A-Za-z0-9_.:+-]*$/.test(text) ? text.split(":")[0] : null;
  }

  function parseTarget(text, rules) {
    const [head, ...devices] = text.trim().split("+");
    const match = TARGET.exec(head);
    const system = match && (has(SYSTEMS, match[8]) ? SYSTEMS[match[8]] : match[8]);
    if (!match || !["linux", "darwin", "windows"].includes(system)) {
      throw new Error("expected torch<version>-<accelerator>-<cpu>-<os>, such as torch2.9-cu128-x86_64-linux+sm_90");
    }
    const [backend, version] = accelerator(match[6], rules);
    const torch = minor(match[1]);
    const processor = match[7].toLowerCase();
    let abi = null;
    // Torch's Linux packages have the new C++ ABI since 2.7.
    if (torch && system === "linux") abi = match[2] || (compare(torch, [2, 7]) >= 0 ? "cxx11" : "cxx98");
    const archs = devices.map((part) => {
      const device = /^(?:[1-9][0-9]{0,2}x)?(.+)$/.exec(part);
      const found = device && architecture(device[1], rules[backend]);
      if (!found) throw new Error(`${part || "nothing"} is no architecture of ${backend}`);
      return found;
    });
    return {
      backend, version, torch, abi, system,
      tvm: minor(match[3]),
      python: minor(match[4]),
      threaded: match[5] === "t",
      cpu: has(CPUS, processor) ? CPUS[processor] : processor,
      systemVersion: match[9] || "",
      arch: archs.length ? archs[0] : null,
    };
  }

  // --- Builds, as src/kernels/resolver/choice.py decides ---------------------------------------------------------

  /** Why a build does not suit a target, or null. */
  function judge(build, target, rules) {
    const rule = rules[target.backend];
    const noarch = build.kind === "torch-noarch";
    const universal = build.accelerator === "universal";
    if (noarch ? build.accelerator !== rule.noarch && !universal : build.backend !== target.backend) {
      return `for ${build.backend}, not ${target.backend}`;
    }
    if (!noarch) {
      if (build.os !== target.system) return `for ${build.os}, not ${target.system}`;
      if (build.processor !== target.cpu) return `for ${build.processor} processors`;
      const macos = target.systemVersion.split(".")[0];
      if (rule.macos && !(/^[0-9]+$/.test(macos) && Number(macos) >= rule.macos)) return `needs macOS ${rule.macos} or newer`;
      if (target.threaded && !(target.python && compare(target.python, [3, 15]) >= 0)) return "free-threaded Python cannot load it";
      const wanted = build.framework;
      if (build.kind === "tvm-ffi" && !same(wanted, target.tvm)) return `needs tvm-ffi ${dotted(wanted)}`;
      if (build.kind === "torch" && !same(wanted, target.torch)) return `needs Torch ${dotted(wanted)}`;
      if (build.kind === "torch-stable-abi" && !(target.torch && compare(target.torch, wanted) >= 0)) return `needs Torch ${dotted(wanted)} or newer`;
      if (build.abi && build.abi !== target.abi) return `has the C++ ABI ${build.abi}`;
      const built = build.version;
      if (rule.version === "minor") {
        if (!built || !target.version || built[0] !== target.version[0] || built[1] > target.version[1]) return `for ${target.backend} ${dotted(built)}`;
      } else if (!same(built, target.version)) return `for ${target.backend} ${dotted(built)}`;
    }
    if (build.type === null) return "its metadata is missing or not valid";
    if (!universal && build.type !== build.backend) return `its metadata says it is for ${build.type}`;
    if (build.type === target.backend && target.arch && build.archs.length && !covered(build.archs, target.arch, rule)) {
      return `its architectures do not cover ${target.arch}`;
    }
    return null;
  }

  function covered(archs, device, rule) {
    if (rule.arch === "none") return true;
    if (rule.arch === "equal") return archs.includes(device);
    const wanted = minor(device);
    return archs.some((arch) => {
      const match = /^([1-9][0-9]{0,2})\.([0-9])([af]?)(\+PTX)?$/.exec(arch);
      if (!match) return false;
      const built = [Number(match[1]), Number(match[2])];
      if (match[3] === "a") return compare(built, wanted) === 0;
      if (match[4] && !match[3]) return compare(built, wanted) <= 0;
      return built[0] === wanted[0] && wanted[1] >= built[1];
    });
  }

  const KINDS = { "torch-stable-abi": 0, torch: 1, "tvm-ffi": 2, "torch-noarch": 3 };

  function preference(build) {
    const newest = build.kind === "torch-stable-abi" ? build.framework : [0, 0];
    const version = build.version || [0, 0];
    return [KINDS[build.kind], build.accelerator === "universal" ? 1 : 0, -newest[0], -newest[1], build.abi ? 1 : 0, -version[0], -version[1]];
  }

  /** The build that would be loaded of those that suit. */
  function best(builds) {
    const ranked = builds.map((build) => [preference(build), build]);
    ranked.sort(([one, a], [other, b]) => {
      const at = one.findIndex((value, index) => value !== other[index]);
      return at < 0 ? (a.name < b.name ? -1 : 1) : one[at] - other[at];
    });
    return ranked.length ? ranked[0][1] : null;
  }

  globalThis.kernelsRules = Object.freeze({ parseTarget, judge, best });

  // --- Elements ---------------------------------------------------------------------------------------------------

  const byId = (id) => document.getElementById(id);

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const stored = {
    get() {
      try { return localStorage.getItem("kernels-target") || ""; } catch { return ""; }
    },
    set(value) {
      try { localStorage.setItem("kernels-target", value); } catch { /* not allowed here */ }
    },
  };

  // --- A kernel's page ----------------------------------------------------------------------------------------------

  function kernelPage(section) {
    const rules = JSON.parse(section.dataset.rules);
    const choice = byId("target-choice");
    const input = byId("target");
    const problem = byId("target-problem");
    const verdict = byId("verdict");
    const versions = [...section.querySelectorAll("details.version")].map((details) => ({
      details,
      rows: [...details.querySelectorAll("tr[data-facts]")].map((row) => ({
        row,
        cell: row.querySelector("td.fit"),
        facts: row.dataset.facts ? JSON.parse(row.dataset.facts) : null,
        chip: details.querySelector(`[data-build="${row.id}"]`),
      })),
    }));

    function show(text) {
      problem.textContent = "";
      verdict.textContent = "";
      let target = null;
      if (text.trim()) {
        try {
          target = parseTarget(text, rules);
        } catch (error) {
          problem.textContent = `Not a target: ${error.message}.`;
        }
      }
      input.setAttribute("aria-invalid", String(Boolean(problem.textContent)));
      section.classList.toggle("judged", Boolean(target));
      for (const each of section.querySelectorAll(".fit")) each.hidden = !target;
      versions.forEach(({ details, rows }, index) => {
        const fitting = [];
        for (const { row, cell, facts, chip } of rows) {
          row.classList.remove("fits", "best", "misfit");
          const why = target && (facts ? judge(facts, target, rules) : "its name is not a variant's");
          if (target) row.classList.add(why === null ? "fits" : "misfit");
          cell.textContent = !target ? "" : why === null ? "Fits" : why;
          if (target && why === null) fitting.push(facts);
          if (chip) chip.className = !target ? "chip" : why === null ? "chip fits" : "chip misfit";
          if (chip) mark(chip, target && why === null ? "fits" : "");
        }
        const chosen = target && best(fitting);
        if (chosen) {
          const found = rows.find(({ facts }) => facts === chosen);
          found.row.classList.add("best");
          found.cell.textContent = "Would be loaded";
          if (found.chip) {
            found.chip.classList.add("best");
            mark(found.chip, "would be loaded");
          }
        }
        if (target && index === 0) {
          verdict.textContent = chosen
            ? `${fitting.length} of ${rows.length} builds of ${details.dataset.branch} ${fitting.length === 1 ? "fits" : "fit"}; ${chosen.name} would be loaded.`
            : `No build of ${details.dataset.branch} fits.`;
        }
      });
      if (!problem.textContent) stored.set(text.trim());
    }

    /** What the colour says, for those who do not see it. */
    function mark(chip, text) {
      for (const old of chip.querySelectorAll(".hidden")) old.remove();
      if (text) chip.append(element("span", "hidden", `, ${text}`));
    }

    choice.addEventListener("change", () => {
      if (choice.value === "other") return input.focus();
      input.value = choice.value;
      show(input.value);
    });
    input.addEventListener("input", () => {
      const known = [...choice.options].some((option) => option.value === input.value.trim());
      choice.value = known ? input.value.trim() : "other";
      show(input.value);
    });
    byId("target-form").hidden = false;
    const before = stored.get();
    if (before) {
      input.value = before;
      input.dispatchEvent(new Event("input"));
    }

    // A chip leads to its row, which may be in a closed version.
    const follow = () => {
      const row = location.hash && byId(location.hash.slice(1));
      const details = row && row.closest && row.closest("details");
      if (details) details.open = true;
    };
    addEventListener("hashchange", follow);
    follow();

    const code = byId("from-here-code");
    if (code && location.protocol.startsWith("http")) {
      const mirror = new URL("../../../", location.href).href.replace(/\/$/, "");
      code.firstElementChild.textContent = `export KERNELS_HUB=${shellWord(mirror)}`;
      code.hidden = byId("from-here").hidden = false;
    }
    for (const block of document.querySelectorAll("pre[data-copy]")) copyable(block);
  }

  /** A word of a command that is copied: who made a link to this page chose the path in its address. */
  function shellWord(text) {
    return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`;
  }

  function copyable(block) {
    if (block.hidden || !navigator.clipboard) return;
    const wrapper = element("div", "copy");
    block.replaceWith(wrapper);
    const button = element("button", "button", "Copy");
    button.type = "button";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(block.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    wrapper.append(block, button);
  }

  // --- The list -----------------------------------------------------------------------------------------------------

  const PAGE = 50;

  function listPage(list) {
    const search = byId("search");
    const backend = byId("backend");
    const found = byId("found");
    const more = byId("more");
    const first = [...list.children];
    const firstText = found.textContent;
    const labels = new Map([...backend.options].map((option) => [option.value, option.textContent]));
    let entries = null;
    let asked = false;
    let matches = [];
    let shown = first.length;
    let wished = PAGE; // rows, once the list is there
    let next = -1; // the row that gets the focus then

    globalThis.kernelsCatalog = (data) => {
      entries = data.entries.map(([name, , , summary, backends, versions, builds, names, license, date]) => ({
        name, summary, backends, versions, builds, license, date,
        text: [name, summary, ...backends, ...backends.map((each) => labels.get(each) || ""), ...names, license].join("\n").toLowerCase(),
        lower: name.toLowerCase(),
        names: names.map((each) => each.toLowerCase()),
      }));
      update(wished);
    };

    function load() {
      if (asked) return;
      asked = true;
      const script = document.createElement("script");
      const plain = { createScriptURL: (url) => url };
      const policy = globalThis.trustedTypes ? trustedTypes.createPolicy("kernels-list", plain) : plain;
      script.src = policy.createScriptURL(list.dataset.list);
      script.addEventListener("error", () => { found.textContent = "The list could not be loaded."; asked = false; });
      document.head.append(script);
    }

    /** Lower is better: the name itself, a function or a layer of that name, somewhere in the name, elsewhere. */
    function rank(entry, words) {
      const own = entry.lower.slice(entry.lower.indexOf("/") + 1);
      if (words.length !== 1) return 3;
      const word = words[0];
      return own === word ? 0 : entry.names.includes(word) ? 1 : own.startsWith(word) ? 2 : entry.lower.includes(word) ? 3 : 4;
    }

    function update(limit) {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (!entries && (words.length || backend.value || limit > first.length)) {
        found.textContent = "Loading the list…";
        wished = limit;
        return load();
      }
      if (!entries) return undefined;
      const wanted = backend.value;
      matches = entries.filter((entry) => (!wanted || entry.backends.includes(wanted)) && words.every((word) => entry.text.includes(word)));
      if (words.length) {
        const ranks = new Map(matches.map((entry) => [entry, rank(entry, words)]));
        matches.sort((one, other) => ranks.get(one) - ranks.get(other));
      }
      shown = Math.min(limit, matches.length);
      list.replaceChildren(...matches.slice(0, shown).map(row));
      const all = matches.length.toLocaleString("en");
      const kernels = `${all} kernel${matches.length === 1 ? "" : "s"}`;
      if (!words.length && !wanted && shown === first.length) found.textContent = firstText;
      else found.textContent = !matches.length ? "Nothing found." : shown < matches.length ? `The first ${shown} of ${all}` : kernels;
      more.hidden = shown >= matches.length;
      const link = next >= 0 && list.children[next] && list.children[next].querySelector("a");
      next = -1;
      if (link) link.focus();
      return undefined;
    }

    function row(entry) {
      const item = element("li");
      const link = element("a");
      const slash = entry.name.indexOf("/") + 1;
      link.href = `catalog/${entry.name}/index.html`;
      link.append(element("span", "publisher", entry.name.slice(0, slash)), element("wbr"), element("span", "name", entry.name.slice(slash)));
      item.append(link);
      if (entry.summary) item.append(element("p", "", entry.summary));
      const tags = element("ul", "tags");
      for (const each of entry.backends) tags.append(element("li", "", labels.get(each) || each));
      const quiet = [entry.versions[0], `${entry.builds.toLocaleString("en")} build${entry.builds === 1 ? "" : "s"}`, entry.license, entry.date];
      for (const each of quiet) if (each) tags.append(element("li", "quiet", each));
      item.append(tags);
      return item;
    }

    let waiting = 0;
    const later = () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => update(PAGE), 80);
    };
    search.addEventListener("focus", load, { once: true });
    search.addEventListener("input", later);
    backend.addEventListener("change", () => update(PAGE));
    more.addEventListener("click", () => {
      next = list.children.length;
      update(shown + PAGE);
    });
    if (search.value || backend.value) update(PAGE);
  }

  // --- Both ---------------------------------------------------------------------------------------------------------

  addEventListener("keydown", (event) => {
    const search = byId("search");
    const typing = event.target instanceof Element && event.target.closest("input, select, textarea");
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || typing || !search) return;
    event.preventDefault();
    search.focus();
    search.select();
  });

  const section = byId("builds-section");
  const list = byId("list");
  if (section) kernelPage(section);
  if (list) listPage(list);
})();
